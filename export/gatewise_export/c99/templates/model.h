/* ${mark} ${version} from ${title}. Do not edit: generate again for another operating point.

   The firmware allocates a ${p}_instance and passes a callback that acquires a feature:

       static float acquire(int feature, void *context) { ... }   return NaN if the sensor fails

       ${p}_instance instance;
       ${p}_answer answer;
       ${p}_decide(&instance, acquire, context, &answer);

   `acquire` is called at most once per feature and instance, and only for features that the stages
   need. The code allocates no memory and keeps all state in the instance. It computes in float32;
   compiled with -ffp-contract=off, it gives the decisions, margins and acquired features of training,
   bit for bit. */
#ifndef ${P}_H
#define ${P}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ${P}_FEATURES ${n_features} /* features of an instance */
#define ${P}_SLOTS ${n_slots} /* features that the stages may acquire */
#define ${P}_CLASSES ${n_classes}
#define ${P}_STAGES ${n_stages}
#define ${P}_OUTPUTS ${n_outputs} /* largest number of outputs of a stage */
#define ${P}_OFFLOADS ${offloads} /* 1: instances for which no stage stops go to the cloud */
#define ${P}_CODED ${code_bits} /* bits of a threshold's code; 0: thresholds are floats */

#define ${P}_TABLE_BYTES ${table_bytes} /* flash for the const arrays, without the code */
#define ${P}_INSTANCE_BYTES ${instance_bytes} /* RAM for a ${p}_instance */
#define ${P}_STACK_BYTES ${stack_bytes} /* upper bound on the stack, without instance and callback */

/* Numbers of the features and classes. Their names are in ${p}_names.c, which is optional. */
enum {
${feature_enum}
};
enum {
${class_enum}
};
extern const char *const ${p}_feature_names[${P}_FEATURES]; /* UTF-8 */
extern const char *const ${p}_class_names[${P}_CLASSES];

/* Return the value of a feature; NaN if it is missing. */
typedef float (*${p}_acquire)(int feature, void *context);

typedef struct {
    float value[${n_values}];   /* values of the slots */
    float output[${n_outputs}];  /* outputs of the stage that ran last: margins, and a gate's score */
    int32_t refused; /* feature whose value was refused, or -1 */
${code_field}    uint8_t known[${n_flags}]; /* state of each slot, padded to a whole word */
} ${p}_instance;

enum {
    ${P}_STOPPED,  /* stage `exit` answers */
    ${P}_OFFLOAD,  /* no stage stopped: send the instance to the cloud; `label` is the fallback */
    ${P}_FALLBACK, /* a value was refused: `label` is the answer of the last finished stage */
    ${P}_ERROR     /* the first stage needs a value that was refused: no answer */
};

typedef struct {
    int outcome; /* ${P}_STOPPED, ${P}_OFFLOAD, ${P}_FALLBACK or ${P}_ERROR */
    int exit;    /* the stage that stopped; ${P}_STAGES if no stage did */
    int stage;   /* the last stage that finished; -1 if no stage did */
    int label;   /* class number that `stage` answers; -1: no answer${omission_note} */
    int refused; /* feature with an infinite${or_missing} value, which was refused; -1: no feature */
} ${p}_answer;

/* Classify an instance: run the stages in turn until one stops. */
void ${p}_decide(${p}_instance *instance, ${p}_acquire acquire, void *context,
                 ${p}_answer *answer);

/* Classify step by step: begin, then run stages in turn. A stage returns 1 if it stops, 0 if the
   next stage must run, and -1 if a value was refused. The label is that of the stage that
   ran last; -1 if its model is left out. */
void ${p}_begin(${p}_instance *instance);
int ${p}_stage(${p}_instance *instance, int stage, ${p}_acquire acquire, void *context);
int ${p}_label(const ${p}_instance *instance, int stage);

/* The value of a feature, or a null pointer if it was not acquired or was refused. */
const float *${p}_value(const ${p}_instance *instance, int feature);

/* Whether a feature was acquired, and therefore paid for, even if its value was refused. */
int ${p}_acquired(const ${p}_instance *instance, int feature);

#ifdef __cplusplus
}
#endif
#endif
