/* C functions of the steps of signal blocks; each section is one function or type. A generated file has
   only the sections that its steps need. Most functions read `x`, which has `n_rows` rows of `n`
   values, and write their results to `out`. `work` is memory for intermediate values; `twiddle` and
   `stride` give the factors of a Fourier transform, and `squares` is the sum of the squared window. */
//// channels

/* Copy the chosen columns of the window, one after another, scaled to their unit. */
static void channels(const ${element} *x, uint32_t n_samples, uint32_t width, const uint32_t *columns,
                     uint32_t n_columns, float scale, float *out)
{
    uint32_t c, i;
    for (c = 0; c < n_columns; c++)
        for (i = 0; i < n_samples; i++)
            *out++ = (float)x[i * width + READ(uint32_t, columns + c)] * scale;
}
//// pixels

static void pixels(const ${element} *x, uint32_t n, float scale, float *out)
{
    uint32_t i;
    for (i = 0; i < n; i++)
        out[i] = (float)x[i] * scale;
}
//// grey

/* Grey value of each pixel: the weighted sum of red, green and blue. */
static void grey(const ${element} *x, uint32_t n, float scale, float red, float green, float blue,
                 float *out)
{
    uint32_t i;
    for (i = 0; i < n; i++, x += 3)
        out[i] = (float)x[0] * scale * red + (float)x[1] * scale * green +
                 (float)x[2] * scale * blue;
}
//// difference

/* Absolute difference of each value in two frames. */
static void difference(const float *before, const float *after, uint32_t n, float *out)
{
    uint32_t i;
    for (i = 0; i < n; i++)
        out[i] = fabsf(after[i] - before[i]);
}
//// term

enum { PLAIN, ABSOLUTE, SQUARE, CUBE, FOURTH, PRODUCT, CHANGE, WEIGHTED, SPREAD };

/* One term of a sum. d = x - mean, and the mean is first + centre. WEIGHTED reads y from a table in
   flash, SPREAD reads x from one, and all others read memory. */
static float term(const float *x, const float *y, float first, float centre, int kind)
{
    float value = kind == SPREAD ? READ_FLOAT(x) : *x;
    float d = (value - first) - centre;
    float square = d * d;
    switch (kind) {
    case ABSOLUTE:
        return fabsf(d);
    case SQUARE:
        return square;
    case CUBE:
        return square * d;
    case FOURTH:
        return square * square;
    case PRODUCT:
        return d * ((*y - first) - centre);
    case CHANGE:
        return fabsf(*y - value);
    case WEIGHTED:
        return d * READ_FLOAT(y);
    case SPREAD:
        return square * *y;
    default:
        return d;
    }
}
//// total_of_few

/* Sum of up to 128 terms, in eight running sums as in numpy. */
static float total_of_few(const float *x, const float *y, uint32_t n, float first, float centre,
                          int kind)
{
    float lane[8], sum = 0.0f;
    uint32_t i = 0, j;
    if (n >= 8) {
        for (j = 0; j < 8; j++)
            lane[j] = term(x + j, y + j, first, centre, kind);
        for (i = 8; i < n - n % 8; i += 8)
            for (j = 0; j < 8; j++)
                lane[j] += term(x + i + j, y + i + j, first, centre, kind);
        sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    }
    for (; i < n; i++)
        sum += term(x + i, y + i, first, centre, kind);
    return sum;
}
//// halves_type

/* State of a sum that is split in halves, as numpy does: sums of left halves whose right half is not
   yet added. */
typedef struct {
    float left[16];
    uint32_t n_right[16]; /* length of the right half; 0 after it has begun */
    uint32_t depth;
} halves_type;
//// first_part

/* Split n terms in halves, and the first half again, down to at most 128; return its length. */
static uint32_t first_part(halves_type *halves, uint32_t n)
{
    for (; n > 128; n = n / 2 - n / 2 % 8)
        halves->n_right[halves->depth++] = n - (n / 2 - n / 2 % 8);
    return n;
}
//// next_part

/* Add the sum of a part to the sums of earlier parts; return the length of the next part, or 0 after
   the last part. */
static uint32_t next_part(halves_type *halves, float *sum)
{
    uint32_t n;
    while (halves->depth && !halves->n_right[halves->depth - 1])
        *sum = halves->left[--halves->depth] + *sum;
    if (!halves->depth)
        return 0;
    halves->left[halves->depth - 1] = *sum;
    n = halves->n_right[halves->depth - 1];
    halves->n_right[halves->depth - 1] = 0;
    return first_part(halves, n);
}
//// total

/* Sum of n terms in the order of numpy's sums. */
static float total(const float *x, const float *y, uint32_t n, float first, float centre, int kind)
{
    halves_type halves;
    float sum;
    halves.depth = 0;
    n = first_part(&halves, n);
    do {
        sum = total_of_few(x, y, n, first, centre, kind);
        x += n;
        y += n;
        n = next_part(&halves, &sum);
    } while (n);
    return sum;
}
//// mean_of

static float mean_of(const float *x, uint32_t n)
{
    return total(x, x, n, 0.0f, 0.0f, PLAIN) / (float)n;
}
//// centre_of

/* Mean distance from the first value. It is exact if all values are equal. */
static float centre_of(const float *x, uint32_t n)
{
    return total(x, x, n, x[0], 0.0f, PLAIN) / (float)n;
}
//// segment

/* Sum of terms in the order of numpy's `reduceat`: the first term plus the total of the rest. */
static float segment(const float *x, uint32_t n, float centre, int kind)
{
    float sum = term(x, x, 0.0f, centre, kind);
    return n > 1 ? sum + total(x + 1, x + 1, n - 1, 0.0f, centre, kind) : sum;
}
//// ratio

/* numerator / denominator; 0 if the denominator is not positive. */
static float ratio(float numerator, float denominator)
{
    return denominator > 0.0f ? numerator / denominator : 0.0f;
}
//// largest

static float largest(const float *x, uint32_t n)
{
    float maximum = x[0];
    uint32_t i;
    for (i = 1; i < n; i++)
        if (x[i] > maximum || x[i] != x[i]) /* NaN, as in numpy */
            maximum = x[i];
    return maximum;
}
//// smallest

static float smallest(const float *x, uint32_t n)
{
    float minimum = x[0];
    uint32_t i;
    for (i = 1; i < n; i++)
        if (x[i] < minimum || x[i] != x[i])
            minimum = x[i];
    return minimum;
}
//// magnitude

/* Euclidean length over the rows, sample by sample. */
static void magnitude(const float *x, uint32_t n_rows, uint32_t n, float *out)
{
    uint32_t i, row;
    for (i = 0; i < n; i++) {
        float sum = x[i] * x[i];
        for (row = 1; row < n_rows; row++)
            sum += x[row * n + i] * x[row * n + i];
        out[i] = sqrtf(sum);
    }
}
//// envelope

/* Mean distance from the row's mean in each part of `width` samples. */
static void envelope(const float *x, uint32_t n_rows, uint32_t n, uint32_t width, float *out)
{
    uint32_t row, i;
    for (row = 0; row < n_rows; row++, x += n) {
        float centre = centre_of(x, n);
        for (i = 0; i < n / width; i++) {
            const float *part = x + i * width;
            *out++ = total(part, part, width, x[0], centre, ABSOLUTE) / (float)width;
        }
    }
}
//// jerk

/* Rate of change between neighbouring samples. */
static void jerk(const float *x, uint32_t n_rows, uint32_t n, float rate, float *out)
{
    uint32_t row, i;
    for (row = 0; row < n_rows; row++, x += n)
        for (i = 1; i < n; i++)
            *out++ = (x[i] - x[i - 1]) * rate;
}
//// mean

static void mean(const float *x, uint32_t n_rows, uint32_t n, float *out)
{
    uint32_t row;
    for (row = 0; row < n_rows; row++, x += n)
        out[row] = mean_of(x, n);
}
//// statistics

/* Standard deviation, skewness, kurtosis, root mean square, crest factor and range of each row. */
static void statistics(const float *x, uint32_t n_rows, uint32_t n, float *out)
{
    uint32_t row;
    for (row = 0; row < n_rows; row++, x += n) {
        float count = (float)n, centre = centre_of(x, n);
        float variance = total(x, x, n, x[0], centre, SQUARE) / count, deviation = sqrtf(variance);
        float rms = sqrtf(total(x, x, n, 0.0f, 0.0f, SQUARE) / count);
        float maximum = largest(x, n), minimum = smallest(x, n);
        *out++ = deviation;
        *out++ = ratio(total(x, x, n, x[0], centre, CUBE) / count, variance * deviation);
        *out++ = ratio(total(x, x, n, x[0], centre, FOURTH) / count, variance * variance);
        *out++ = rms;
        *out++ = ratio(maximum < -minimum ? -minimum : maximum, rms);
        *out++ = maximum - minimum;
    }
}
//// sorts_before

/* Whether a sorts before b; NaN sorts after all numbers. */
static int sorts_before(float a, float b)
{
    return a < b || (b != b && a == a);
}
//// sort

/* Sort in place (heap sort). */
static void sort(float *x, uint32_t n)
{
    uint32_t begin = n / 2, end = n;
    while (end > 1) {
        uint32_t hole, child;
        float value;
        if (begin) {
            value = x[--begin];
        } else {
            value = x[--end];
            x[end] = x[0];
        }
        for (hole = begin; (child = 2 * hole + 1) < end; hole = child) {
            if (child + 1 < end && sorts_before(x[child], x[child + 1]))
                child++;
            if (!sorts_before(value, x[child]))
                break;
            x[hole] = x[child];
        }
        x[hole] = value;
    }
}
//// quantiles

/* Quantiles by linear interpolation between sorted values. `work` may be x. */
static void quantiles(const float *x, uint32_t n_rows, uint32_t n, const uint32_t *lower_rank,
                      const float *fraction, uint32_t n_quantiles, float *work, float *out)
{
    uint32_t row, i;
    for (row = 0; row < n_rows; row++, x += n) {
        for (i = 0; i < n; i++)
            work[i] = x[i];
        sort(work, n);
        for (i = 0; i < n_quantiles; i++) {
            uint32_t rank = READ(uint32_t, lower_rank + i);
            float lower = work[rank];
            float upper = work[rank + (rank + 1 < n)];
            *out++ = lower + READ_FLOAT(fraction + i) * (upper - lower);
        }
    }
}
//// crossings

/* Share of neighbouring samples on different sides of the mean, and their mean absolute difference. */
static void crossings(const float *x, uint32_t n_rows, uint32_t n, float *out)
{
    uint32_t row, i;
    for (row = 0; row < n_rows; row++, x += n) {
        float centre = centre_of(x, n), n_pairs = (float)(n - 1);
        uint32_t n_crossings = 0;
        for (i = 1; i < n; i++)
            n_crossings += ((x[i] - x[0]) - centre < 0.0f) != ((x[i - 1] - x[0]) - centre < 0.0f);
        *out++ = n > 1 ? (float)n_crossings / n_pairs : 0.0f;
        *out++ = n > 1 ? total(x, x + 1, n - 1, 0.0f, 0.0f, CHANGE) / n_pairs : 0.0f;
    }
}
//// autocorrelation

/* Autocorrelation of each row at each of `n_lags` lags. */
static void autocorrelation(const float *x, uint32_t n_rows, uint32_t n, const uint32_t *lags,
                            uint32_t n_lags, float *out)
{
    uint32_t row, i;
    for (row = 0; row < n_rows; row++, x += n) {
        float centre = centre_of(x, n), square_sum = total(x, x, n, x[0], centre, SQUARE);
        for (i = 0; i < n_lags; i++) {
            uint32_t lag = READ(uint32_t, lags + i);
            *out++ = ratio(total(x, x + lag, n - lag, x[0], centre, PRODUCT), square_sum);
        }
    }
}
//// split_level

/* One level of a Haar wavelet: replace 2 n samples by n means, and return the sum of the squared
   details. Only one part of the details is in memory at a time. */
static float split_level(float *x, uint32_t n, float root_half, float *detail)
{
    halves_type halves;
    float *mean = x;
    float sum;
    uint32_t i;
    halves.depth = 0;
    n = first_part(&halves, n);
    do {
        for (i = 0; i < n; i++, x += 2, mean++) {
            detail[i] = (x[0] - x[1]) * root_half;
            *mean = (x[0] + x[1]) * root_half;
        }
        sum = total_of_few(detail, detail, n, 0.0f, 0.0f, SQUARE);
        n = next_part(&halves, &sum);
    } while (n);
    return sum;
}
//// wavelet

/* Logarithm of the mean power of the details of each level, and of the last means. `work` may be x. */
static void wavelet(const float *x, uint32_t n_rows, uint32_t n, float root_half, uint32_t n_levels,
                    float *detail, float *work, float *out)
{
    uint32_t row, i, level;
    for (row = 0; row < n_rows; row++, x += n) {
        float first = x[0];
        float centre = centre_of(x, n);
        uint32_t length = n;
        for (i = 0; i < n; i++)
            work[i] = (x[i] - first) - centre;
        for (level = 0; level < n_levels; level++) {
            float square_sum;
            length /= 2;
            square_sum = split_level(work, length, root_half, detail);
            *out++ = logf(square_sum / (float)length + 1e-12f);
        }
        *out++ = logf(total(work, work, length, 0.0f, 0.0f, SQUARE) / (float)length + 1e-12f);
    }
}
//// tilt

/* Pitch, roll and inclination of the mean acceleration, in radians. */
static void tilt(const float *x, uint32_t n, float *out)
{
    float x_mean = mean_of(x, n), y_mean = mean_of(x + n, n), z_mean = mean_of(x + 2 * n, n);
    float xx = x_mean * x_mean, yy = y_mean * y_mean, zz = z_mean * z_mean;
    out[0] = atan2f(x_mean, sqrtf(yy + zz));
    out[1] = atan2f(y_mean, sqrtf(xx + zz));
    out[2] = atan2f(sqrtf(xx + yy), z_mean);
}
//// fft

/* Discrete Fourier transform of n complex numbers in place, where n is a power of 2. `twiddle` holds
   the cosine and negative sine of 2 pi k / (n * stride) for k < n * stride / 2. */
static void fft(float *z, uint32_t n, const float *twiddle, uint32_t stride)
{
    uint32_t i, j, k, half;
    for (i = 1, j = 0; i < n; i++) {
        uint32_t bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            float re = z[2 * i], im = z[2 * i + 1];
            z[2 * i] = z[2 * j];
            z[2 * i + 1] = z[2 * j + 1];
            z[2 * j] = re;
            z[2 * j + 1] = im;
        }
    }
    for (half = 1; half < n; half *= 2) {
        uint32_t step = n / (2 * half) * stride;
        for (k = 0; k < half; k++) {
            float c = READ_FLOAT(twiddle + 2 * k * step);
            float s = READ_FLOAT(twiddle + 2 * k * step + 1);
            for (i = k; i < n; i += 2 * half) {
                float *a = z + 2 * i, *b = a + 2 * half;
                float re = b[0] * c - b[1] * s, im = b[0] * s + b[1] * c;
                b[0] = a[0] - re;
                b[1] = a[1] - im;
                a[0] += re;
                a[1] += im;
            }
        }
    }
}
//// bin_power

/* Squared magnitude of bin k of 2 m real numbers, from their transform as m complex numbers. */
static float bin_power(const float *z, uint32_t m, uint32_t k, const float *twiddle, uint32_t stride)
{
    const float *a = z + 2 * (k % m), *b = z + 2 * ((m - k) % m);
    float c = k < m ? READ_FLOAT(twiddle + 2 * k * stride) : -1.0f;
    float s = k < m ? READ_FLOAT(twiddle + 2 * k * stride + 1) : 0.0f;
    float even = 0.5f * (a[0] + b[0]), even_im = 0.5f * (a[1] - b[1]);
    float odd = 0.5f * (a[1] + b[1]), odd_im = 0.5f * (b[0] - a[0]);
    float re = even + (c * odd - s * odd_im), im = even_im + (c * odd_im + s * odd);
    return re * re + im * im;
}
//// power

/* Squared magnitudes of the transform of 2 m real numbers: write the first m in place, and return the
   last one. */
static float power(float *z, uint32_t m, const float *twiddle, uint32_t stride)
{
    float last;
    uint32_t k;
    fft(z, m, twiddle, 2 * stride);
    last = bin_power(z, m, m, twiddle, stride);
    z[0] = bin_power(z, m, 0, twiddle, stride);
    for (k = 1; 2 * k <= m; k++) { /* bins k and m - k depend on the same two numbers */
        float low = bin_power(z, m, k, twiddle, stride);
        z[2 * (m - k)] = bin_power(z, m, m - k, twiddle, stride);
        z[2 * k] = low;
    }
    for (k = 1; k < m; k++)
        z[k] = z[2 * k];
    return last;
}
//// spectrum_of

/* Power spectrum of n centred and windowed samples, padded to `size`. The window is symmetric,
   hann[i] = hann[n - i], so the table holds only its first half. `work` has `size` floats and may
   overlap x and out. */
static void spectrum_of(const float *x, uint32_t n, const float *hann, float squares, uint32_t size,
                        const float *twiddle, uint32_t stride, float *work, float *out)
{
    float first = x[0];
    float centre = centre_of(x, n);
    float last;
    uint32_t i;
    for (i = 0; i < n; i++)
        work[i] = ((x[i] - first) - centre) * READ_FLOAT(hann + (i <= n / 2 ? i : n - i));
    for (; i < size; i++)
        work[i] = 0.0f;
    last = power(work, size / 2, twiddle, stride);
    for (i = 0; i < size / 2; i++)
        out[i] = work[i] / squares;
    out[size / 2] = last / squares;
}
//// spectrum

static void spectrum(const float *x, uint32_t n_rows, uint32_t n, const float *hann, float squares,
                     uint32_t size, const float *twiddle, uint32_t stride, float *work, float *out)
{
    uint32_t row;
    for (row = 0; row < n_rows; row++)
        spectrum_of(x + row * n, n, hann, squares, size, twiddle, stride, work,
                    out + row * (size / 2 + 1));
}
//// band_powers

/* Logarithm of the mean power of each band's bins; 0 for a band without bins. */
static void band_powers(const float *x, uint32_t n_rows, uint32_t n_bins, const uint32_t *band_start,
                        uint32_t n_bands, float *out)
{
    uint32_t row, band;
    for (row = 0; row < n_rows; row++, x += n_bins)
        for (band = 0; band < n_bands; band++) {
            uint32_t begin = READ(uint32_t, band_start + band);
            uint32_t size = READ(uint32_t, band_start + band + 1) - begin;
            float sum = size ? segment(x + begin, size, 0.0f, PLAIN) : 0.0f;
            *out++ = size ? logf(sum / (float)size + 1e-12f) : 0.0f;
        }
}
//// spectral_moments

/* Centroid, spread, entropy, roll-off frequency and peak frequency of each row's spectrum. Below the
   roll-off frequency lies the `share` of the power. */
static void spectral_moments(const float *x, uint32_t n_rows, uint32_t n_bins, const float *frequency,
                             float share, float entropy_scale, float *work, float *out)
{
    uint32_t row, i;
    for (row = 0; row < n_rows; row++, x += n_bins, out += 5) {
        float power_sum = total(x, x, n_bins, 0.0f, 0.0f, PLAIN);
        float centroid, running_sum = 0.0f, share_sum;
        uint32_t rolloff_bin = 0, peak_bin = 0;
        for (i = 0; i < n_bins; i++) {
            work[i] = ratio(x[i], power_sum);
            running_sum += work[i];
            if (x[i] > x[peak_bin] || (x[i] != x[i] && x[peak_bin] == x[peak_bin]))
                peak_bin = i;
        }
        share_sum = running_sum * share;
        for (running_sum = 0.0f, i = 0; i < n_bins; i++) {
            running_sum += work[i];
            if (running_sum >= share_sum) {
                rolloff_bin = i;
                break;
            }
        }
        centroid = total(work, frequency, n_bins, 0.0f, 0.0f, WEIGHTED);
        out[0] = centroid;
        out[1] = sqrtf(total(frequency, work, n_bins, 0.0f, centroid, SPREAD));
        out[3] = READ_FLOAT(frequency + rolloff_bin);
        out[4] = READ_FLOAT(frequency + peak_bin);
        for (i = 0; i < n_bins; i++)
            work[i] *= logf(work[i] + 1e-12f);
        out[2] = total(work, work, n_bins, 0.0f, 0.0f, PLAIN) / entropy_scale;
    }
}
//// spectrogram

/* Power spectrum of each frame; a frame begins every `hop` samples. */
static void spectrogram(const float *x, uint32_t n_rows, uint32_t n, uint32_t frame_length,
                        uint32_t hop, const float *hann, float squares, uint32_t size,
                        const float *twiddle, uint32_t stride, float *work, float *out)
{
    uint32_t row, begin;
    for (row = 0; row < n_rows; row++, x += n)
        for (begin = 0; begin + frame_length <= n; begin += hop, out += size / 2 + 1)
            spectrum_of(x + begin, frame_length, hann, squares, size, twiddle, stride, work, out);
}
//// mel_bands

/* Logarithm of each band's weighted sum of bins, frame by frame. `weights` holds the weights of all
   bands, one band after another. */
static void mel_bands(const float *x, uint32_t n_frames, uint32_t n_bins, const uint32_t *first_bin,
                      const float *weights, const uint32_t *band_start, uint32_t n_bands, float *out)
{
    uint32_t frame, band;
    for (frame = 0; frame < n_frames; frame++, x += n_bins)
        for (band = 0; band < n_bands; band++) {
            uint32_t begin = READ(uint32_t, band_start + band);
            uint32_t size = READ(uint32_t, band_start + band + 1) - begin;
            const float *band_bins = x + READ(uint32_t, first_bin + band);
            const float *band_weights = weights + begin;
            float others = total(band_bins + 1, band_weights + 1, size - 1, 0.0f, 0.0f, WEIGHTED);
            *out++ = logf(band_bins[0] * READ_FLOAT(band_weights) + others + 1e-12f);
        }
}
//// mel_of_frames

/* Mel bands of each frame, computed from the samples. `out` may be x: a frame's bands may overwrite
   samples that no later frame reads. */
static void mel_of_frames(const float *x, uint32_t n_rows, uint32_t n, uint32_t frame_length,
                          uint32_t hop, const uint32_t *first_bin, const float *weights,
                          const uint32_t *band_start, uint32_t n_bands, const float *hann,
                          float squares, uint32_t size, const float *twiddle, uint32_t stride,
                          float *work, float *out)
{
    uint32_t row, begin;
    for (row = 0; row < n_rows; row++, x += n)
        for (begin = 0; begin + frame_length <= n; begin += hop, out += n_bands) {
            spectrum_of(x + begin, frame_length, hann, squares, size, twiddle, stride, work, work);
            mel_bands(work, 1, size / 2 + 1, first_bin, weights, band_start, n_bands, out);
        }
}
//// over_frames

/* Mean and standard deviation over the frames of each of `n_values` values. If `n_parts` exceeds 1,
   the means over the frames of each part follow. */
static void over_frames(const float *x, uint32_t n_frames, uint32_t n_values, uint32_t n_parts,
                        float *work, float *out)
{
    uint32_t i, frame, part;
    for (i = 0; i < n_values; i++) {
        float centre;
        for (frame = 0; frame < n_frames; frame++)
            work[frame] = x[frame * n_values + i];
        centre = centre_of(work, n_frames);
        out[i] = mean_of(work, n_frames);
        out[n_values + i] =
            sqrtf(total(work, work, n_frames, work[0], centre, SQUARE) / (float)n_frames);
        for (part = 0; n_parts > 1 && part < n_parts; part++) {
            uint32_t begin = part * n_frames / n_parts;
            uint32_t end = (part + 1) * n_frames / n_parts;
            out[(2 + part) * n_values + i] = mean_of(work + begin, end - begin);
        }
    }
}
//// mel_energies

static void mel_energies(const float *x, uint32_t n_rows, uint32_t n_frames, uint32_t n_bands,
                         float *work, float *out)
{
    uint32_t row;
    for (row = 0; row < n_rows; row++)
        over_frames(x + row * n_frames * n_bands, n_frames, n_bands, 1, work, out + 2 * row * n_bands);
}
//// mfcc

/* Mean, standard deviation and means of parts of the first `n_coefficients` cepstral coefficients. */
static void mfcc(const float *x, uint32_t n_rows, uint32_t n_frames, uint32_t n_bands,
                 const float *cosines, uint32_t n_coefficients, uint32_t n_parts, float *work,
                 float *out)
{
    float *series = work + n_frames * n_coefficients;
    uint32_t row, frame, i, n_statistics = n_parts > 1 ? 2 + n_parts : 2;
    for (row = 0; row < n_rows; row++, out += n_statistics * n_coefficients) {
        for (frame = 0; frame < n_frames; frame++, x += n_bands)
            for (i = 0; i < n_coefficients; i++)
                work[frame * n_coefficients + i] =
                    total(x, cosines + i * n_bands, n_bands, 0.0f, 0.0f, WEIGHTED);
        over_frames(work, n_frames, n_coefficients, n_parts, series, out);
    }
}
//// cell_sum

/* Sum of terms over a cell of a picture, row by row; `work` has `cell_height` floats. */
static float cell_sum(const float *x, uint32_t width, uint32_t cell_width, uint32_t cell_height,
                      float centre, int kind, float *work)
{
    uint32_t row;
    for (row = 0; row < cell_height; row++)
        work[row] = segment(x + row * width, cell_width, centre, kind);
    return segment(work, cell_height, 0.0f, PLAIN);
}
//// thumbnail

/* Mean of each cell of a picture. */
static void thumbnail(const float *x, uint32_t height, uint32_t width, uint32_t n_rows,
                      uint32_t n_columns, float *work, float *out)
{
    uint32_t row, column;
    for (row = 0; row < n_rows; row++)
        for (column = 0; column < n_columns; column++) {
            uint32_t top = row * height / n_rows, left = column * width / n_columns;
            uint32_t cell_height = (row + 1) * height / n_rows - top;
            uint32_t cell_width = (column + 1) * width / n_columns - left;
            const float *cell = x + top * width + left;
            float size = (float)(cell_height * cell_width);
            *out++ = cell_sum(cell, width, cell_width, cell_height, 0.0f, PLAIN, work) / size;
        }
}
//// cells

/* Standard deviations of all cells of a picture, then their smallest values, then their largest. */
static void cells(const float *x, uint32_t height, uint32_t width, uint32_t n_rows, uint32_t n_columns,
                  float *work, float *out)
{
    uint32_t row, column, i;
    for (row = 0; row < n_rows; row++)
        for (column = 0; column < n_columns; column++, out++) {
            uint32_t top = row * height / n_rows, left = column * width / n_columns;
            uint32_t cell_height = (row + 1) * height / n_rows - top;
            uint32_t cell_width = (column + 1) * width / n_columns - left;
            const float *cell = x + top * width + left;
            float size = (float)(cell_height * cell_width);
            float centre = cell_sum(cell, width, cell_width, cell_height, 0.0f, PLAIN, work) / size;
            out[0] = sqrtf(cell_sum(cell, width, cell_width, cell_height, centre, SQUARE, work) / size);
            for (i = 0; i < cell_height; i++)
                work[i] = smallest(cell + i * width, cell_width);
            out[n_rows * n_columns] = smallest(work, cell_height);
            for (i = 0; i < cell_height; i++)
                work[i] = largest(cell + i * width, cell_width);
            out[2 * n_rows * n_columns] = largest(work, cell_height);
        }
}
//// histogram

/* Share of the values in each bin; the first and the last bin also count values beyond them. */
static void histogram(const float *x, uint32_t n, uint32_t n_bins, float lowest, float bins_per_unit,
                      float *out)
{
    uint32_t i;
    for (i = 0; i < n_bins; i++)
        out[i] = 0.0f;
    for (i = 0; i < n; i++) {
        float position = (x[i] - lowest) * bins_per_unit, last_bin = (float)(n_bins - 1);
        out[position > last_bin ? n_bins - 1 : position > 0.0f ? (uint32_t)position : 0] += 1.0f;
    }
    for (i = 0; i < n_bins; i++)
        out[i] /= (float)n;
}
//// nearest

/* Round |x| < 2^22 to the nearest integer, ties to even: adding 1.5 * 2^23 does that. Not every C
   library has rintf. */
static int32_t nearest(float x)
{
    float sum = x + 12582912.0f;
    return (int32_t)(sum - 12582912.0f);
}
//// edge_cell

/* Sums of the gradient lengths in a cell by their direction. Each row is summed separately, which
   loses less precision. */
static void edge_cell(const float *x, uint32_t width, uint32_t cell_width, uint32_t cell_height,
                      float directions_per_radian, uint32_t n_directions, float *out)
{
    float row_sums[16], last_direction = (float)n_directions;
    uint32_t row, i, k;
    for (k = 0; k < n_directions; k++)
        out[k] = 0.0f;
    for (row = 0; row < cell_height; row++, x += width) {
        for (k = 0; k < n_directions; k++)
            row_sums[k] = 0.0f;
        for (i = 0; i < cell_width; i++) {
            float dx = x[i + 1] - x[i], dy = x[i + width] - x[i];
            float direction = atan2f(dy, dx) * directions_per_radian;
            /* NaN counts as the last direction, which equals the first */
            direction = direction < last_direction ? direction : last_direction;
            direction = direction > -last_direction ? direction : -last_direction;
            row_sums[(uint32_t)nearest(direction) & (n_directions - 1)] += sqrtf(dx * dx + dy * dy);
        }
        for (k = 0; k < n_directions; k++)
            out[k] += row_sums[k];
    }
    for (k = 0; k < n_directions; k++)
        out[k] /= (float)(cell_width * cell_height);
}
//// edges

/* Mean absolute change along x and along y, then the gradient lengths of each cell by direction. */
static void edges(const float *x, uint32_t height, uint32_t width, uint32_t n_rows, uint32_t n_columns,
                  uint32_t n_directions, float directions_per_radian, float *out)
{
    uint32_t gradient_height = height - 1, gradient_width = width - 1, row, column;
    float dx = 0.0f, dy = 0.0f, size = (float)(gradient_height * gradient_width);
    for (row = 0; row < gradient_height; row++) {
        const float *pixels = x + row * width;
        dx += total(pixels, pixels + 1, gradient_width, 0.0f, 0.0f, CHANGE);
        dy += total(pixels, pixels + width, gradient_width, 0.0f, 0.0f, CHANGE);
    }
    *out++ = dx / size;
    *out++ = dy / size;
    for (row = 0; row < n_rows; row++)
        for (column = 0; column < n_columns; column++, out += n_directions) {
            uint32_t top = row * gradient_height / n_rows, left = column * gradient_width / n_columns;
            edge_cell(x + top * width + left, width, (column + 1) * gradient_width / n_columns - left,
                      (row + 1) * gradient_height / n_rows - top, directions_per_radian,
                      n_directions, out);
        }
}
