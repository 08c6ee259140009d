//// tree types
typedef ${slot} slot_type;
typedef ${skip} skip_type;
typedef ${start} start_type;
typedef ${key} key_type;
typedef ${output} output_type;

typedef struct {
    const start_type *start; /* first inner node of each tree, and their number */
    const slot_type *slot;   /* what a node tests */
    const key_type *key;     /* to the left up to here */
    const skip_type *skip;   /* inner nodes of its left part, which come next */
    const float *value;      /* of the leaves, in the order of the walk */
${small}    const output_type *output; /* which output a tree adds to; 0: all */
    const float *base;
    uint32_t n_trees, n_outputs;
} trees_type;
//// leaves

static float value_of_leaf(const trees_type *t, uint32_t leaf)
{
    return ${leaf};
}

static void add_leaf(const trees_type *t, uint32_t tree, uint32_t leaf, float *out)
{
    uint32_t m;
    if (t->output) {
        out[t->output[tree]] += value_of_leaf(t, leaf);
        return;
    }
    for (m = 0; m < t->n_outputs; m++)
        out[m] += value_of_leaf(t, leaf * t->n_outputs + m);
}
//// walk

static ${returns} ${name}(${const}${p}_instance *it, const trees_type *t, float *out${more})
{
    const ${key} *x = it->${numbers};
    uint32_t tree, m;
    for (m = 0; m < t->n_outputs; m++)
        out[m] = 0.0f;
    for (tree = 0; tree < t->n_trees; tree++) {
        uint32_t node = t->start[tree], leaf = node + tree, inner = t->start[tree + 1] - node;
        while (inner) {
            uint32_t skip = t->skip[node];
            ${test}
${take}            if (x[slot] <= t->key[node]${or_nan}) {
                node += 1;
                inner = skip;
            } else {
                node += skip + 1;
                leaf += skip + 1;
                inner -= skip + 1;
            }
        }
        add_leaf(t, tree, leaf, out);
    }
    for (m = 0; m < t->n_outputs; m++)
        out[m] += t->base[m];
${ends}}
//// take in walk
            if (!take(it, slot, acquire, context))
                return 0;
//// linear type
typedef struct {
    const ${slot} *slot;
    const float *mean, *scale, *weight, *bias;
    uint16_t n_inputs, n_outputs;
} linear_type;
//// linear

static void add_terms(const ${p}_instance *it, const linear_type *t, float *out)
{
    const float *w = t->weight;
    uint32_t j, m;
    for (m = 0; m < t->n_outputs; m++)
        out[m] = 0.0f;
    for (j = 0; j < t->n_inputs; j++) {
        float z = (it->value[t->slot[j]] - t->mean[j]) * t->scale[j];
        for (m = 0; m < t->n_outputs; m++) {
            float term = z * *w++;
            out[m] += term;
        }
    }
    for (m = 0; m < t->n_outputs; m++)
        out[m] += t->bias[m];
}
//// kernel type
typedef struct {
    const ${slot} *slot;
    const float *mean, *scale, *landmark, *weight, *bias;
    float rate;
    uint16_t n_inputs, n_landmarks, n_outputs;
} kernel_type;
//// kernel

/* (1 + rate d) ** -${exponent} of the squared distance d to each landmark, weighed and added up */
static void add_kernels(const ${p}_instance *it, const kernel_type *t, float *out)
{
    const float *mark = t->landmark, *w = t->weight;
    float z[${widest}];
    uint32_t i, j, m;
    z[0] = 0.0f; /* gcc fears a machine without inputs */
    for (m = 0; m < t->n_outputs; m++)
        out[m] = 0.0f;
    for (j = 0; j < t->n_inputs; j++)
        z[j] = (it->value[t->slot[j]] - t->mean[j]) * t->scale[j];
    for (i = 0; i < t->n_landmarks; i++) {
        float distance = 0.0f, power;
        for (j = 0; j < t->n_inputs; j++) {
            float gap = z[j] - *mark++;
            float square = gap * gap;
            distance += square;
        }
        power = distance * t->rate;
        power = 1.0f / (power + 1.0f);
        for (j = 0; j < ${squarings}; j++)
            power = power * power;
        for (m = 0; m < t->n_outputs; m++) {
            float term = power * *w++;
            out[m] += term;
        }
    }
    for (m = 0; m < t->n_outputs; m++)
        out[m] += t->bias[m];
}
//// codes

/* How many of the edges are below a value: what nodes compare with the rank of their threshold. */
static ${code} code_of(float v, uint32_t number)
{
    uint32_t first = edge_start[number], low = 0, high = edge_start[number + 1] - first;
    const float *edges = edge + first;
${nan}    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (edges[middle] < v)
            low = middle + 1;
        else
            high = middle;
    }
    return (${code})low;
}
//// take

/* A feature's value, acquired if it is not yet known; 0 if it is refused. */
static int take(${p}_instance *it, uint32_t slot, ${p}_acquire acquire, void *context)
{
    float v;
    if (it->known[slot])
        return it->known[slot] == KNOWN;
    v = acquire(columns[slot], context);
    it->value[slot] = v;
    if (${refused}) { /* ${what} */
        it->known[slot] = REFUSED;
        it->refused = columns[slot];
        return 0;
    }
    it->known[slot] = KNOWN;
${code}    return 1;
}
//// take all

/* All features of a stage, also behind one that is refused: 0 then. An infinite one is named before
   a missing one, as everywhere in Gatewise. */
static int take_all(${p}_instance *it, const ${slot} *slots, uint32_t n, ${p}_acquire acquire,
                    void *context)
{
    uint32_t i;
    int32_t missing = -1, infinite = -1;
    for (i = 0; i < n; i++) {
        float v;
        if (take(it, slots[i], acquire, context))
            continue;
        v = it->value[slots[i]];
        if (v != v && missing < 0)
            missing = (int32_t)columns[slots[i]];
        if (v == v && infinite < 0)
            infinite = (int32_t)columns[slots[i]];
    }
    if (missing < 0 && infinite < 0)
        return 1;
    it->refused = infinite < 0 ? missing : infinite;
    return 0;
}
//// label

static int best_class(const float *margin, int n)
{
    int m, best = 0;
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
