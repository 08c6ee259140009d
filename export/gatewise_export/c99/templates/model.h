/* ${mark} ${version} from ${title}. Do not edit: write it again for another operating point.

   The firmware holds a ${p}_instance and gives a callback that acquires a feature:

       static float acquire(int feature, void *context) { ... }   NaN: it cannot be had

       ${p}_instance instance;
       ${p}_answer answer;
       ${p}_decide(&instance, acquire, context, &answer);

   acquire is called at most once per feature and instance, and only for features that the stages need.
   Nothing is allocated, and all state is in the instance. Float32 throughout; compile with
   -ffp-contract=off, and decisions, margins and acquired features are those of training, bit for bit. */
#ifndef ${P}_H
#define ${P}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ${P}_FEATURES ${n_features} /* columns of an instance */
#define ${P}_SLOTS ${n_slots} /* columns that the stages may acquire */
#define ${P}_CLASSES ${n_classes}
#define ${P}_STAGES ${n_stages}
#define ${P}_OUTPUTS ${n_outputs} /* largest number of outputs of a stage */
#define ${P}_OFFLOADS ${offloads} /* 1: the cloud answers what no stage stops for */
#define ${P}_CODED ${coded} /* bits of a code; 0: nodes hold float thresholds */

#define ${P}_TABLE_BYTES ${table_bytes} /* flash: the const arrays; the code comes on top */
#define ${P}_INSTANCE_BYTES ${instance_bytes} /* RAM: a ${p}_instance */
#define ${P}_STACK_BYTES ${stack_bytes} /* bound on the stack, without instance and callback */

/* Features and classes by name; their texts are in ${p}_names.c, which a device need not link. */
enum {
${feature_enum}
};
enum {
${class_enum}
};
extern const char *const ${p}_feature_names[${P}_FEATURES]; /* UTF-8 */
extern const char *const ${p}_class_names[${P}_CLASSES];

/* The value of a feature; NaN if it is missing. */
typedef float (*${p}_acquire)(int feature, void *context);

typedef struct {
    float value[${n_values}];   /* of the slots */
    float output[${n_outputs}];  /* of the stage that ran last: margins, and a gate's score */
    int32_t refused; /* feature whose value was refused, or -1 */
${code}    uint8_t known[${n_flags}]; /* the last ones may be padding */
} ${p}_instance;

enum {
    ${P}_STOPPED,  /* stage `exit` answers */
    ${P}_OFFLOAD,  /* no stage stops: to the cloud; `label` is the fallback */
    ${P}_FALLBACK, /* a value was refused: the last finished stage's label is the best there is */
    ${P}_ERROR     /* a value that the first stage needs was refused: there is no answer */
};

typedef struct {
    int outcome; /* one of the four above */
    int exit;    /* the stage that stopped; ${P}_STAGES: none */
    int stage;   /* the last stage that finished; -1: none */
    int label;   /* class number of that stage's answer; -1: none${lean} */
    int refused; /* feature whose value was refused: infinite${or_missing}; -1: none */
} ${p}_answer;

/* Classify an instance: stage after stage, until one stops. */
void ${p}_decide(${p}_instance *instance, ${p}_acquire acquire, void *context,
                 ${p}_answer *answer);

/* The same, step by step. Stages in turn: 1 it stops, 0 go on, -1 a value was refused. */
void ${p}_begin(${p}_instance *instance);
int ${p}_stage(${p}_instance *instance, int stage, ${p}_acquire acquire, void *context);
int ${p}_label(const ${p}_instance *instance, int stage);

/* The value of a feature that was acquired, or a null pointer. */
const float *${p}_value(const ${p}_instance *instance, int feature);

/* Whether a feature was acquired, and so is paid for: its value may have been refused. */
int ${p}_acquired(const ${p}_instance *instance, int feature);

#ifdef __cplusplus
}
#endif
#endif
