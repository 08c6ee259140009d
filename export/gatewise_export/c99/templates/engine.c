/* C functions and types that compute the stages; each section is one of them. A generated file has
   only the sections that its models need. READ reads a table, which may lie in flash. */
//// trees_type

typedef struct {
    const start_type *start; /* first inner node of each tree; last, the number of inner nodes */
    const slot_type *slot;   /* slot that a node tests */
    const key_type *key;     /* threshold of a node, or its code */
    const skip_type *skip;   /* number of inner nodes in the left subtree, which follows the node */
    const row_type *row;     /* row of leaf numbers of each leaf; null: leaf i has row i */
    const bound_type *bound; /* first number of each row; null: a row has one number per output */
    const output_type *member; /* output of each number, if `bound` is not null */
    const pick_type *pick;     /* index in `value` of each number; null: number i is value[i] */
    const int8_t *small;       /* numbers as multiples of `step`; null: `value` holds them */
    const float *value;
    const output_type *output; /* output that a tree adds to; null: it adds to all */
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

/* Count the thresholds of a slot below a value. `value <= threshold` exactly if this count is at most
   the rank of the threshold, so nodes store ranks. */
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
//// acquire_slot

/* Acquire the feature of a slot unless its value is known; return 0 if the value is refused. */
static int acquire_slot(${p}_instance *instance, uint32_t slot, ${p}_acquire acquire, void *context)
{
    int feature = (int)READ(column_type, columns + slot);
    float value;
    if (instance->known[slot])
        return instance->known[slot] == KNOWN;
    value = acquire(feature, context);
    instance->value[slot] = value;
    if (${is_refused}) { /* ${refused_values} */
        instance->known[slot] = REFUSED;
        instance->refused = feature;
        return 0;
    }
    instance->known[slot] = KNOWN;
${store_code}    return 1;
}
//// acquire_slots

/* Acquire all features of a stage, even after a refused one; return 0 if one was refused. `refused`
   names the first infinite value, or the first missing one if all values are finite. */
static int acquire_slots(${p}_instance *instance, const list_type *slots, uint32_t n,
                         ${p}_acquire acquire, void *context)
{
    int32_t missing = -1;
    int32_t infinite = -1;
    uint32_t i;
    for (i = 0; i < n; i++) {
        uint32_t slot = READ(list_type, slots + i);
        int32_t feature = (int32_t)READ(column_type, columns + slot);
        float value;
        if (acquire_slot(instance, slot, acquire, context))
            continue;
        value = instance->value[slot];
        if (value != value && missing < 0)
            missing = feature;
        if (value == value && infinite < 0)
            infinite = feature;
    }
    if (missing < 0 && infinite < 0)
        return 1;
    instance->refused = infinite < 0 ? missing : infinite;
    return 0;
}
//// leaf_number

/* Read leaf number i. */
static float leaf_number(const trees_type *trees, uint32_t i)
{
${leaf_number}}
//// add_leaf

/* Add the numbers of a tree's leaf to the outputs. */
static void add_leaf(const trees_type *trees, uint32_t tree, uint32_t leaf, float *out)
{
    uint32_t row = ${leaf_row};
    uint32_t m;
    if (trees->output) {
        out[READ(output_type, trees->output + tree)] += leaf_number(trees, row);
        return;
    }
${sparse_rows}    for (m = 0; m < trees->n_outputs; m++)
        out[m] += leaf_number(trees, row * trees->n_outputs + m);
}
//// sparse rows
    if (trees->bound) { /* the rows leave out zeros */
        uint32_t end = READ(bound_type, trees->bound + row + 1);
        for (m = READ(bound_type, trees->bound + row); m < end; m++)
            out[READ(output_type, trees->member + m)] += leaf_number(trees, m);
        return;
    }
//// add_trees

/* Sum the leaves that an instance reaches, in float32, tree by tree and the base last, as in
   training. The left subtree follows its node, and the right subtree follows the left one. A tree of
   n inner nodes has n + 1 leaves, so counting the skipped nodes gives a leaf's number without a
   link. Return 0 if a value was refused. */
static int add_trees(${p}_instance *instance, const trees_type *table, ${p}_acquire acquire,
                     void *context)
{
    trees_type copy;
    const trees_type *trees = &copy;
    float *out = instance->output;
    uint32_t tree, m;
    READ_STRUCT(&copy, table);
    for (m = 0; m < trees->n_outputs; m++)
        out[m] = 0.0f;
    for (tree = 0; tree < trees->n_trees; tree++) {
        uint32_t node = READ(start_type, trees->start + tree);
        uint32_t leaf = node + tree;
        /* inner nodes of the subtree that begins at `node` */
        uint32_t n_inner = READ(start_type, trees->start + tree + 1) - node;
        while (n_inner) {
            uint32_t skip = READ(skip_type, trees->skip + node);
            uint32_t test = READ(slot_type, trees->slot + node);
            uint32_t slot = ${slot_of_test};
${acquire_node}            if (${goes_left}) {
                node += 1;
                n_inner = skip;
            } else {
                node += skip + 1;
                leaf += skip + 1;
                n_inner -= skip + 1;
            }
        }
        add_leaf(trees, tree, leaf, out);
    }
    for (m = 0; m < trees->n_outputs; m++)
        out[m] += READ_FLOAT(trees->base + m);
    (void)acquire;
    (void)context;
    return 1;
}
//// standardised

/* z = (x - mean) * scale, the standardised value of an input of a model */
static float standardised(float value, const float *mean, const float *scale)
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
static void add_terms(${p}_instance *instance, const linear_type *table)
{
    linear_type copy;
    const linear_type *model = &copy;
    float *out = instance->output;
    uint32_t j, m;
    READ_STRUCT(&copy, table);
    for (m = 0; m < model->n_outputs; m++)
        out[m] = 0.0f;
    for (j = 0; j < model->n_inputs; j++) {
        float value = instance->value[READ(list_type, model->slot + j)];
        float z = standardised(value, model->mean + j, model->scale + j);
        add_weighted(z, model->weights + j * model->n_outputs, model->n_outputs, out);
    }
    add_weighted(1.0f, model->bias, model->n_outputs, out);
}
//// add_kernels

/* out = sum_i (1 + rate |z - landmark_i|^2)^-${exponent} weights_i + bias, landmark by landmark */
static void add_kernels(${p}_instance *instance, const kernel_type *table)
{
    kernel_type copy;
    const kernel_type *model = &copy;
    const float *landmark;
    float *out = instance->output;
    float z[${widest_kernel}];
    uint32_t i, j, m;
    READ_STRUCT(&copy, table);
    landmark = model->landmarks;
    z[0] = 0.0f; /* gcc warns of a machine without inputs */
    for (m = 0; m < model->n_outputs; m++)
        out[m] = 0.0f;
    for (j = 0; j < model->n_inputs; j++)
        z[j] = standardised(instance->value[READ(list_type, model->slot + j)], model->mean + j,
                            model->scale + j);
    for (i = 0; i < model->n_landmarks; i++, landmark += model->n_inputs) {
        float squared_distance = 0.0f;
        float power;
        for (j = 0; j < model->n_inputs; j++) {
            float difference = z[j] - READ_FLOAT(landmark + j);
            float square = difference * difference;
            squared_distance += square;
        }
        power = squared_distance * model->rate;
        power = 1.0f / (power + 1.0f);
        for (j = 0; j < ${squarings}; j++)
            power = power * power;
        add_weighted(power, model->weights + i * model->n_outputs, model->n_outputs, out);
    }
    add_weighted(1.0f, model->bias, model->n_outputs, out);
}
//// best_class

/* Find the class with the largest margin. The first of equal margins wins, and NaN wins over
   numbers, as in numpy. */
static int best_class(const float *margin, int n)
{
    int largest = 0;
    int m;
    if (n == 1)
        return margin[0] > 0.0f;
    for (m = 0; m < n; m++) {
        if (margin[m] != margin[m])
            return m;
        if (margin[m] > margin[largest])
            largest = m;
    }
    return largest;
}
