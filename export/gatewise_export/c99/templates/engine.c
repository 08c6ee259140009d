//// trees_type

typedef struct {
    const start_type *start; /* first inner node of each tree, and their number */
    const slot_type *slot;   /* slot that a node tests */
    const key_type *key;     /* threshold of a node, or its code */
    const skip_type *skip;   /* inner nodes of its left part, which come next */
    const row_type *row;     /* row of numbers of each leaf; 0: in the order of the walk */
    const bound_type *bound; /* first number of each row; 0: a row has one for each output */
    const output_type *member; /* output of each number, if rows have bounds */
    const pick_type *pick;     /* place in `value` of each number; 0: in order */
    const int8_t *small;       /* numbers as multiples of `step`; 0: `value` holds them */
    const float *value;
    const output_type *output; /* output that a tree adds to; 0: to all */
    const float *base;         /* added last */
    float step;                /* a power of two */
    uint32_t n_trees;
    uint32_t n_outputs;
} trees_type;
//// linear_type

typedef struct {
    const list_type *slot;
    const float *mean;
    const float *scale;
    const float *weights;
    const float *bias;
    uint16_t n_inputs;
    uint16_t n_outputs;
} linear_type;
//// kernel_type

typedef struct {
    const list_type *slot;
    const float *mean;
    const float *scale;
    const float *landmarks;
    const float *weights;
    const float *bias;
    float rate;
    uint16_t n_inputs;
    uint16_t n_landmarks;
    uint16_t n_outputs;
} kernel_type;
//// code_of

/* Number of thresholds below a value. `value <= threshold` exactly where the value's code is at
   most the rank of the threshold, so nodes hold ranks. */
static code_type code_of(float value, uint32_t slot)
{
    uint32_t start = READ(edge_start_type, edge_start + slot);
    uint32_t low = 0;
    uint32_t high = READ(edge_start_type, edge_start + slot + 1) - start;
${nan_code}    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (READ_FLOAT(edge + start + middle) < value)
            low = middle + 1;
        else
            high = middle;
    }
    return (code_type)low;
}
//// take

/* Acquire a feature unless its value is known; return 0 if the value is refused. */
static int take(${p}_instance *it, uint32_t slot, ${p}_acquire acquire, void *context)
{
    int feature = (int)READ(column_type, columns + slot);
    float value;
    if (it->known[slot])
        return it->known[slot] == KNOWN;
    value = acquire(feature, context);
    it->value[slot] = value;
    if (${refused}) { /* ${refused_values} */
        it->known[slot] = REFUSED;
        it->refused = feature;
        return 0;
    }
    it->known[slot] = KNOWN;
${store_code}    return 1;
}
//// take_all

/* Acquire all features of a stage, even after a refused one; return 0 if one was refused. As
   everywhere in Gatewise, `refused` names the first infinite value, or else the first missing one. */
static int take_all(${p}_instance *it, const list_type *slots, uint32_t n, ${p}_acquire acquire,
                    void *context)
{
    int32_t missing = -1;
    int32_t infinite = -1;
    uint32_t i;
    for (i = 0; i < n; i++) {
        uint32_t slot = READ(list_type, slots + i);
        int32_t feature = (int32_t)READ(column_type, columns + slot);
        float value;
        if (take(it, slot, acquire, context))
            continue;
        value = it->value[slot];
        if (value != value && missing < 0)
            missing = feature;
        if (value == value && infinite < 0)
            infinite = feature;
    }
    if (missing < 0 && infinite < 0)
        return 1;
    it->refused = infinite < 0 ? missing : infinite;
    return 0;
}
//// leaf_number

/* A number of the leaves. */
static float leaf_number(const trees_type *t, uint32_t place)
{
${leaf_number}}
//// add_leaf

static void add_leaf(const trees_type *t, uint32_t tree, uint32_t leaf, float *out)
{
    uint32_t row = ${leaf_row};
    uint32_t m;
    if (t->output) {
        out[READ(output_type, t->output + tree)] += leaf_number(t, row);
        return;
    }
${sparse_rows}    for (m = 0; m < t->n_outputs; m++)
        out[m] += leaf_number(t, row * t->n_outputs + m);
}
//// sparse rows
    if (t->bound) { /* numbers that are 0 are left out */
        for (m = READ(bound_type, t->bound + row); m < READ(bound_type, t->bound + row + 1); m++)
            out[READ(output_type, t->member + m)] += leaf_number(t, m);
        return;
    }
//// walk

/* Sum the leaves of an instance in float32, tree after tree and the base last, as in training. The
   inner nodes of a tree are stored before their left part, then their right part. A tree of n inner
   nodes has n + 1 leaves, so a leaf's number counts the nodes passed and needs no link. */
static int walk(${p}_instance *it, const trees_type *in_flash, ${p}_acquire acquire, void *context)
{
    trees_type copy;
    const trees_type *t = &copy;
    float *out = it->output;
    uint32_t tree, m;
    READ_STRUCT(&copy, in_flash);
    for (m = 0; m < t->n_outputs; m++)
        out[m] = 0.0f;
    for (tree = 0; tree < t->n_trees; tree++) {
        uint32_t node = READ(start_type, t->start + tree);
        uint32_t leaf = node + tree;
        uint32_t n_left = READ(start_type, t->start + tree + 1) - node; /* inner nodes from here on */
        while (n_left) {
            uint32_t skip = READ(skip_type, t->skip + node);
            uint32_t test = READ(slot_type, t->slot + node);
            uint32_t slot = ${slot_of_test};
${take_in_walk}            if (${goes_left}) {
                node += 1;
                n_left = skip;
            } else {
                node += skip + 1;
                leaf += skip + 1;
                n_left -= skip + 1;
            }
        }
        add_leaf(t, tree, leaf, out);
    }
    for (m = 0; m < t->n_outputs; m++)
        out[m] += READ_FLOAT(t->base + m);
    (void)acquire;
    (void)context;
    return 1;
}
//// scaled

/* z = (x - mean) * scale of a model's input */
static float scaled(float value, const float *mean, const float *scale)
{
    return (value - READ_FLOAT(mean)) * READ_FLOAT(scale);
}
//// add_weighted

/* out += factor * weights; the product is rounded before the sum. */
static void add_weighted(float factor, const float *weights, uint32_t n, float *out)
{
    uint32_t m;
    for (m = 0; m < n; m++) {
        float term = factor * READ_FLOAT(weights + m);
        out[m] += term;
    }
}
//// add_terms

/* out = sum_j z_j weights_j + bias, feature by feature */
static void add_terms(${p}_instance *it, const linear_type *in_flash)
{
    linear_type copy;
    const linear_type *t = &copy;
    float *out = it->output;
    uint32_t j, m;
    READ_STRUCT(&copy, in_flash);
    for (m = 0; m < t->n_outputs; m++)
        out[m] = 0.0f;
    for (j = 0; j < t->n_inputs; j++) {
        float value = it->value[READ(list_type, t->slot + j)];
        float z = scaled(value, t->mean + j, t->scale + j);
        add_weighted(z, t->weights + j * t->n_outputs, t->n_outputs, out);
    }
    add_weighted(1.0f, t->bias, t->n_outputs, out);
}
//// add_kernels

/* out = sum_i (1 + rate |z - landmark_i|^2)^-${exponent} weights_i + bias, landmark by landmark */
static void add_kernels(${p}_instance *it, const kernel_type *in_flash)
{
    kernel_type copy;
    const kernel_type *t = &copy;
    const float *landmark;
    float *out = it->output;
    float z[${widest_kernel}];
    uint32_t i, j, m;
    READ_STRUCT(&copy, in_flash);
    landmark = t->landmarks;
    z[0] = 0.0f; /* gcc warns of a machine without inputs */
    for (m = 0; m < t->n_outputs; m++)
        out[m] = 0.0f;
    for (j = 0; j < t->n_inputs; j++)
        z[j] = scaled(it->value[READ(list_type, t->slot + j)], t->mean + j, t->scale + j);
    for (i = 0; i < t->n_landmarks; i++, landmark += t->n_inputs) {
        float distance = 0.0f;
        float power;
        for (j = 0; j < t->n_inputs; j++) {
            float gap = z[j] - READ_FLOAT(landmark + j);
            float square = gap * gap;
            distance += square;
        }
        power = distance * t->rate;
        power = 1.0f / (power + 1.0f);
        for (j = 0; j < ${squarings}; j++)
            power = power * power;
        add_weighted(power, t->weights + i * t->n_outputs, t->n_outputs, out);
    }
    add_weighted(1.0f, t->bias, t->n_outputs, out);
}
//// best_class

/* The class of the largest margin, the first of equals; a NaN comes first, as in numpy. */
static int best_class(const float *margin, int n)
{
    int best = 0;
    int m;
    if (n == 1)
        return margin[0] > 0.0f;
    for (m = 0; m < n; m++) {
        if (margin[m] != margin[m])
            return m;
        if (margin[m] > margin[best])
            best = m;
    }
    return best;
}
