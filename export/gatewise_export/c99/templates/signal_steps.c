//// channels

/* Copy the chosen columns of the window, one after another, scaled to their unit. */
static void channels(const ${element} *x, uint32_t samples, uint32_t width, const uint32_t *index,
                     uint32_t n, float scale, float *out)
{
    uint32_t c, i;
    for (c = 0; c < n; c++)
        for (i = 0; i < samples; i++)
            *out++ = (float)x[i * width + READ(uint32_t, index + c)] * scale;
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

enum { PLAIN, SIZE, SQUARE, CUBE, FOURTH, PRODUCT, CHANGE, WEIGHTED, SPREAD };

/* One term of a sum. d = x - mean, and the mean is first + centre. WEIGHTED reads y from a table in
   flash, SPREAD reads x from one, and all others read memory. */
static float term(const float *x, const float *y, float first, float centre, int kind)
{
    float value = kind == SPREAD ? READ_FLOAT(x) : *x;
    float d = (value - first) - centre;
    float square = d * d;
    switch (kind) {
    case SIZE:
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
    float r[8], sum = 0.0f;
    uint32_t i = 0, j;
    if (n >= 8) {
        for (j = 0; j < 8; j++)
            r[j] = term(x + j, y + j, first, centre, kind);
        for (i = 8; i < n - n % 8; i += 8)
            for (j = 0; j < 8; j++)
                r[j] += term(x + i + j, y + i + j, first, centre, kind);
        sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
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

/* above / below; 0 if below is not positive. */
static float ratio(float above, float below)
{
    return below > 0.0f ? above / below : 0.0f;
}
//// largest

static float largest(const float *x, uint32_t n)
{
    float result = x[0];
    uint32_t i;
    for (i = 1; i < n; i++)
        if (x[i] > result || x[i] != x[i]) /* NaN, as in numpy */
            result = x[i];
    return result;
}
//// smallest

static float smallest(const float *x, uint32_t n)
{
    float result = x[0];
    uint32_t i;
    for (i = 1; i < n; i++)
        if (x[i] < result || x[i] != x[i])
            result = x[i];
    return result;
}
//// magnitude

/* Euclidean length over the rows, sample by sample. */
static void magnitude(const float *x, uint32_t rows, uint32_t n, float *out)
{
    uint32_t i, c;
    for (i = 0; i < n; i++) {
        float sum = x[i] * x[i];
        for (c = 1; c < rows; c++)
            sum += x[c * n + i] * x[c * n + i];
        out[i] = sqrtf(sum);
    }
}
//// envelope

/* Mean distance from the row's mean in each part of `width` samples. */
static void envelope(const float *x, uint32_t rows, uint32_t n, uint32_t width, float *out)
{
    uint32_t c, i;
    for (c = 0; c < rows; c++, x += n) {
        float centre = centre_of(x, n);
        for (i = 0; i < n / width; i++) {
            const float *part = x + i * width;
            *out++ = total(part, part, width, x[0], centre, SIZE) / (float)width;
        }
    }
}
//// jerk

/* Rate of change between neighbouring samples. */
static void jerk(const float *x, uint32_t rows, uint32_t n, float rate, float *out)
{
    uint32_t c, i;
    for (c = 0; c < rows; c++, x += n)
        for (i = 1; i < n; i++)
            *out++ = (x[i] - x[i - 1]) * rate;
}
//// mean

static void mean(const float *x, uint32_t rows, uint32_t n, float *out)
{
    uint32_t c;
    for (c = 0; c < rows; c++, x += n)
        out[c] = mean_of(x, n);
}
//// statistics

/* Standard deviation, skewness, kurtosis, root mean square, crest factor and range of each row. */
static void statistics(const float *x, uint32_t rows, uint32_t n, float *out)
{
    uint32_t c;
    for (c = 0; c < rows; c++, x += n) {
        float size = (float)n, centre = centre_of(x, n);
        float variance = total(x, x, n, x[0], centre, SQUARE) / size, deviation = sqrtf(variance);
        float rms = sqrtf(total(x, x, n, 0.0f, 0.0f, SQUARE) / size);
        float high = largest(x, n), low = smallest(x, n);
        *out++ = deviation;
        *out++ = ratio(total(x, x, n, x[0], centre, CUBE) / size, variance * deviation);
        *out++ = ratio(total(x, x, n, x[0], centre, FOURTH) / size, variance * variance);
        *out++ = rms;
        *out++ = ratio(high < -low ? -low : high, rms);
        *out++ = high - low;
    }
}
//// before

/* Whether a sorts before b; NaN sorts after all numbers. */
static int before(float a, float b)
{
    return a < b || (b != b && a == a);
}
//// sort

/* Sort in place (heap sort). */
static void sort(float *x, uint32_t n)
{
    uint32_t begin = n / 2, end = n;
    while (end > 1) {
        uint32_t i, child;
        float moved;
        if (begin) {
            moved = x[--begin];
        } else {
            moved = x[--end];
            x[end] = x[0];
        }
        for (i = begin; (child = 2 * i + 1) < end; i = child) {
            if (child + 1 < end && before(x[child], x[child + 1]))
                child++;
            if (!before(moved, x[child]))
                break;
            x[i] = x[child];
        }
        x[i] = moved;
    }
}
//// quantiles

/* Quantiles by linear interpolation between sorted values. `work` may be x. */
static void quantiles(const float *x, uint32_t rows, uint32_t n, const uint32_t *lower,
                      const float *part, uint32_t count, float *work, float *out)
{
    uint32_t c, i;
    for (c = 0; c < rows; c++, x += n) {
        for (i = 0; i < n; i++)
            work[i] = x[i];
        sort(work, n);
        for (i = 0; i < count; i++) {
            uint32_t below = READ(uint32_t, lower + i);
            float low = work[below];
            float high = work[below + (below + 1 < n)];
            *out++ = low + READ_FLOAT(part + i) * (high - low);
        }
    }
}
//// crossings

/* Share of neighbouring samples on different sides of the mean, and their mean absolute difference. */
static void crossings(const float *x, uint32_t rows, uint32_t n, float *out)
{
    uint32_t c, i;
    for (c = 0; c < rows; c++, x += n) {
        float centre = centre_of(x, n), pairs = (float)(n - 1);
        uint32_t count = 0;
        for (i = 1; i < n; i++)
            count += ((x[i] - x[0]) - centre < 0.0f) != ((x[i - 1] - x[0]) - centre < 0.0f);
        *out++ = n > 1 ? (float)count / pairs : 0.0f;
        *out++ = n > 1 ? total(x, x + 1, n - 1, 0.0f, 0.0f, CHANGE) / pairs : 0.0f;
    }
}
//// autocorrelation

/* Autocorrelation of each row at each of `count` lags. */
static void autocorrelation(const float *x, uint32_t rows, uint32_t n, const uint32_t *lag,
                            uint32_t count, float *out)
{
    uint32_t c, i;
    for (c = 0; c < rows; c++, x += n) {
        float centre = centre_of(x, n), squares = total(x, x, n, x[0], centre, SQUARE);
        for (i = 0; i < count; i++) {
            uint32_t later = READ(uint32_t, lag + i);
            *out++ = ratio(total(x, x + later, n - later, x[0], centre, PRODUCT), squares);
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
static void wavelet(const float *x, uint32_t rows, uint32_t n, float root_half, uint32_t levels,
                    float *detail, float *work, float *out)
{
    uint32_t c, i, level;
    for (c = 0; c < rows; c++, x += n) {
        float first = x[0];
        float centre = centre_of(x, n);
        uint32_t length = n;
        for (i = 0; i < n; i++)
            work[i] = (x[i] - first) - centre;
        for (level = 0; level < levels; level++) {
            float squares;
            length /= 2;
            squares = split_level(work, length, root_half, detail);
            *out++ = logf(squares / (float)length + 1e-12f);
        }
        *out++ = logf(total(work, work, length, 0.0f, 0.0f, SQUARE) / (float)length + 1e-12f);
    }
}
//// tilt

/* Pitch, roll and inclination of the mean acceleration, in radians. */
static void tilt(const float *x, uint32_t n, float *out)
{
    float a = mean_of(x, n), b = mean_of(x + n, n), c = mean_of(x + 2 * n, n);
    float aa = a * a, bb = b * b, cc = c * c;
    out[0] = atan2f(a, sqrtf(bb + cc));
    out[1] = atan2f(b, sqrtf(aa + cc));
    out[2] = atan2f(sqrtf(aa + bb), c);
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

static void spectrum(const float *x, uint32_t rows, uint32_t n, const float *hann, float squares,
                     uint32_t size, const float *twiddle, uint32_t stride, float *work, float *out)
{
    uint32_t c;
    for (c = 0; c < rows; c++)
        spectrum_of(x + c * n, n, hann, squares, size, twiddle, stride, work, out + c * (size / 2 + 1));
}
//// band_powers

/* Logarithm of the mean power of each band's bins; 0 for a band without bins. */
static void band_powers(const float *x, uint32_t rows, uint32_t bins, const uint32_t *start,
                        uint32_t n, float *out)
{
    uint32_t c, b;
    for (c = 0; c < rows; c++, x += bins)
        for (b = 0; b < n; b++) {
            uint32_t bin = READ(uint32_t, start + b);
            uint32_t size = READ(uint32_t, start + b + 1) - bin;
            float sum = size ? segment(x + bin, size, 0.0f, PLAIN) : 0.0f;
            *out++ = size ? logf(sum / (float)size + 1e-12f) : 0.0f;
        }
}
//// spectral_moments

/* Centroid, spread, entropy, roll-off frequency and peak frequency of each row's spectrum. The
   roll-off frequency is that below which the share `part` of the power lies. */
static void spectral_moments(const float *x, uint32_t rows, uint32_t bins, const float *hz,
                             float part, float entropy_scale, float *work, float *out)
{
    uint32_t c, i;
    for (c = 0; c < rows; c++, x += bins, out += 5) {
        float sum = total(x, x, bins, 0.0f, 0.0f, PLAIN), centroid, running = 0.0f, limit;
        uint32_t reached = 0, peak = 0;
        for (i = 0; i < bins; i++) {
            work[i] = ratio(x[i], sum);
            running += work[i];
            if (x[i] > x[peak] || (x[i] != x[i] && x[peak] == x[peak]))
                peak = i;
        }
        limit = running * part;
        for (running = 0.0f, i = 0; i < bins; i++) {
            running += work[i];
            if (running >= limit) {
                reached = i;
                break;
            }
        }
        centroid = total(work, hz, bins, 0.0f, 0.0f, WEIGHTED);
        out[0] = centroid;
        out[1] = sqrtf(total(hz, work, bins, 0.0f, centroid, SPREAD));
        out[3] = READ_FLOAT(hz + reached);
        out[4] = READ_FLOAT(hz + peak);
        for (i = 0; i < bins; i++)
            work[i] *= logf(work[i] + 1e-12f);
        out[2] = total(work, work, bins, 0.0f, 0.0f, PLAIN) / entropy_scale;
    }
}
//// spectrogram

/* Power spectrum of each frame; a frame begins every `hop` samples. */
static void spectrogram(const float *x, uint32_t rows, uint32_t n, uint32_t frame, uint32_t hop,
                        const float *hann, float squares, uint32_t size, const float *twiddle,
                        uint32_t stride, float *work, float *out)
{
    uint32_t c, first;
    for (c = 0; c < rows; c++, x += n)
        for (first = 0; first + frame <= n; first += hop, out += size / 2 + 1)
            spectrum_of(x + first, frame, hann, squares, size, twiddle, stride, work, out);
}
//// mel_bands

/* Logarithm of each band's weighted sum of bins, frame by frame. `weight` holds the weights of all
   bands, one band after another. */
static void mel_bands(const float *x, uint32_t frames, uint32_t bins, const uint32_t *first,
                      const float *weight, const uint32_t *start, uint32_t bands, float *out)
{
    uint32_t t, b;
    for (t = 0; t < frames; t++, x += bins)
        for (b = 0; b < bands; b++) {
            uint32_t begin = READ(uint32_t, start + b);
            uint32_t size = READ(uint32_t, start + b + 1) - begin;
            const float *bin = x + READ(uint32_t, first + b);
            const float *part = weight + begin;
            float others = total(bin + 1, part + 1, size - 1, 0.0f, 0.0f, WEIGHTED);
            *out++ = logf(bin[0] * READ_FLOAT(part) + others + 1e-12f);
        }
}
//// mel_of_frames

/* Mel bands of each frame, computed from the samples. `out` may be x: a frame's bands may overwrite
   samples that no later frame reads. */
static void mel_of_frames(const float *x, uint32_t rows, uint32_t n, uint32_t frame, uint32_t hop,
                          const uint32_t *first, const float *weight, const uint32_t *start,
                          uint32_t bands, const float *hann, float squares, uint32_t size,
                          const float *twiddle, uint32_t stride, float *work, float *out)
{
    uint32_t c, begin;
    for (c = 0; c < rows; c++, x += n)
        for (begin = 0; begin + frame <= n; begin += hop, out += bands) {
            spectrum_of(x + begin, frame, hann, squares, size, twiddle, stride, work, work);
            mel_bands(work, 1, size / 2 + 1, first, weight, start, bands, out);
        }
}
//// over_frames

/* Mean and standard deviation over the frames of each of `width` values. If `parts` is more than 1,
   the means over the frames of each part follow. */
static void over_frames(const float *x, uint32_t frames, uint32_t width, uint32_t parts,
                        float *work, float *out)
{
    uint32_t k, t, j;
    for (k = 0; k < width; k++) {
        float centre;
        for (t = 0; t < frames; t++)
            work[t] = x[t * width + k];
        centre = centre_of(work, frames);
        out[k] = mean_of(work, frames);
        out[width + k] = sqrtf(total(work, work, frames, work[0], centre, SQUARE) / (float)frames);
        for (j = 0; parts > 1 && j < parts; j++) {
            uint32_t first = j * frames / parts;
            out[(2 + j) * width + k] = mean_of(work + first, (j + 1) * frames / parts - first);
        }
    }
}
//// mel_energies

static void mel_energies(const float *x, uint32_t rows, uint32_t frames, uint32_t bands, float *work,
                         float *out)
{
    uint32_t c;
    for (c = 0; c < rows; c++)
        over_frames(x + c * frames * bands, frames, bands, 1, work, out + 2 * c * bands);
}
//// mfcc

/* Mean, standard deviation and means of parts of the first `width` cepstral coefficients. */
static void mfcc(const float *x, uint32_t rows, uint32_t frames, uint32_t bands, const float *cosine,
                 uint32_t width, uint32_t parts, float *work, float *out)
{
    float *series = work + frames * width;
    uint32_t c, t, k, kinds = parts > 1 ? 2 + parts : 2;
    for (c = 0; c < rows; c++, out += kinds * width) {
        for (t = 0; t < frames; t++, x += bands)
            for (k = 0; k < width; k++)
                work[t * width + k] = total(x, cosine + k * bands, bands, 0.0f, 0.0f, WEIGHTED);
        over_frames(work, frames, width, parts, series, out);
    }
}
//// cell_sum

/* Sum of terms over a cell of a picture, row by row; `work` has `height` floats. */
static float cell_sum(const float *x, uint32_t width, uint32_t n, uint32_t height, float centre,
                      int kind, float *work)
{
    uint32_t r;
    for (r = 0; r < height; r++)
        work[r] = segment(x + r * width, n, centre, kind);
    return segment(work, height, 0.0f, PLAIN);
}
//// thumbnail

/* Mean of each cell of a picture. */
static void thumbnail(const float *x, uint32_t height, uint32_t width, uint32_t rows,
                      uint32_t columns, float *work, float *out)
{
    uint32_t r, c;
    for (r = 0; r < rows; r++)
        for (c = 0; c < columns; c++) {
            uint32_t top = r * height / rows, left = c * width / columns;
            uint32_t high = (r + 1) * height / rows - top, wide = (c + 1) * width / columns - left;
            const float *cell = x + top * width + left;
            *out++ = cell_sum(cell, width, wide, high, 0.0f, PLAIN, work) / (float)(high * wide);
        }
}
//// cells

/* Standard deviations of all cells of a picture, then their smallest values, then their largest. */
static void cells(const float *x, uint32_t height, uint32_t width, uint32_t rows, uint32_t columns,
                  float *work, float *out)
{
    uint32_t r, c, i;
    for (r = 0; r < rows; r++)
        for (c = 0; c < columns; c++, out++) {
            uint32_t top = r * height / rows, left = c * width / columns;
            uint32_t high = (r + 1) * height / rows - top, wide = (c + 1) * width / columns - left;
            const float *cell = x + top * width + left;
            float size = (float)(high * wide);
            float centre = cell_sum(cell, width, wide, high, 0.0f, PLAIN, work) / size;
            out[0] = sqrtf(cell_sum(cell, width, wide, high, centre, SQUARE, work) / size);
            for (i = 0; i < high; i++)
                work[i] = smallest(cell + i * width, wide);
            out[rows * columns] = smallest(work, high);
            for (i = 0; i < high; i++)
                work[i] = largest(cell + i * width, wide);
            out[2 * rows * columns] = largest(work, high);
        }
}
//// histogram

/* Share of the values in each bin; the first and the last bin also count values beyond them. */
static void histogram(const float *x, uint32_t n, uint32_t bins, float low, float factor, float *out)
{
    uint32_t i;
    for (i = 0; i < bins; i++)
        out[i] = 0.0f;
    for (i = 0; i < n; i++) {
        float bin = (x[i] - low) * factor, last = (float)(bins - 1);
        out[bin > last ? bins - 1 : bin > 0.0f ? (uint32_t)bin : 0] += 1.0f;
    }
    for (i = 0; i < bins; i++)
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
static void edge_cell(const float *x, uint32_t width, uint32_t n, uint32_t height, float factor,
                      uint32_t directions, float *out)
{
    float row[16], last_direction = (float)directions;
    uint32_t r, i, k;
    for (k = 0; k < directions; k++)
        out[k] = 0.0f;
    for (r = 0; r < height; r++, x += width) {
        for (k = 0; k < directions; k++)
            row[k] = 0.0f;
        for (i = 0; i < n; i++) {
            float dx = x[i + 1] - x[i], dy = x[i + width] - x[i], direction = atan2f(dy, dx) * factor;
            direction = direction < last_direction ? direction : last_direction; /* NaN counts as the last direction, which equals the first */
            direction = direction > -last_direction ? direction : -last_direction;
            row[(uint32_t)nearest(direction) & (directions - 1)] += sqrtf(dx * dx + dy * dy);
        }
        for (k = 0; k < directions; k++)
            out[k] += row[k];
    }
    for (k = 0; k < directions; k++)
        out[k] /= (float)(n * height);
}
//// edges

/* Mean absolute change along x and along y, then the gradient lengths of each cell by direction. */
static void edges(const float *x, uint32_t height, uint32_t width, uint32_t rows, uint32_t columns,
                  uint32_t directions, float factor, float *out)
{
    uint32_t high = height - 1, wide = width - 1, r, c;
    float dx = 0.0f, dy = 0.0f, size = (float)(high * wide);
    for (r = 0; r < high; r++) {
        const float *row = x + r * width;
        dx += total(row, row + 1, wide, 0.0f, 0.0f, CHANGE);
        dy += total(row, row + width, wide, 0.0f, 0.0f, CHANGE);
    }
    *out++ = dx / size;
    *out++ = dy / size;
    for (r = 0; r < rows; r++)
        for (c = 0; c < columns; c++, out += directions) {
            uint32_t top = r * high / rows, left = c * wide / columns;
            edge_cell(x + top * width + left, width, (c + 1) * wide / columns - left,
                      (r + 1) * high / rows - top, factor, directions, out);
        }
}
