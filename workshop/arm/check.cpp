// Runs each kernel of folovllm/csrc on small inputs, and compares it with a reference in float64 or in whole numbers.
// For machines that Python and torch are not at hand for: a cross compiler's program runs under an emulator (gate.sh).
//
//     check          prints each comparison, and last how many there were and how many failed
//     check FILE     writes the results, too: two builds that should agree to the bit are compared by them

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "cache.h"
#include "kernels.h"

typedef std::vector<double> D;

static int asked = 1;  // threads
static uint64_t seed = 1;

static double uniform() {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(seed >> 11) / (1ull << 53) * 2 - 1;
}

static double normal() {
    double s = 0;
    for (int i = 0; i < 6; i++) s += uniform();
    return s / std::sqrt(2.0);
}

static bf16 to_bf16(float x) {
    uint32_t b;
    memcpy(&b, &x, 4);
    b = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
    return {(uint16_t)b};
}

static void set(float &to, double x) { to = (float)x; }
static void set(bf16 &to, double x) { to = to_bf16((float)x); }
static double val(float x) { return x; }
static double val(bf16 x) { return get(&x); }
template <typename T>
std::vector<T> make(size_t n, double scale = 1) {
    std::vector<T> v(n + 64);
    for (size_t i = 0; i < n; i++) set(v[i], normal() * scale);
    return v;
}

static FILE *dump;
static int failures;
static int total;
template <typename T>
void check(const std::string &name, const std::vector<T> &got, const D &want, double limit) {
    double worst = 0, size = 1e-30;
    bool nan = false;
    for (double x : want) size = std::max(size, std::fabs(x));
    for (size_t i = 0; i < want.size(); i++) {
        double d = std::fabs(val(got[i]) - want[i]) / size;
        if (!(d <= worst)) {
            if (d != d)
                nan = true;
            else
                worst = d;
        }
    }
    const bool ok = !nan && worst <= limit;
    total++;
    failures += !ok;
    printf("%-46s %.2e of the largest %s\n", name.c_str(), worst, ok ? "" : nan ? "NAN" : "TOO MUCH");
    if (dump)
        for (size_t i = 0; i < want.size(); i++) {
            float f = val(got[i]);
            fwrite(&f, 4, 1, dump);
        }
}

static void same(const std::string &name, bool ok) {
    total++;
    failures += !ok;
    if (!ok) printf("%-46s NOT THE SAME BITS\n", name.c_str());
}

constexpr double F = 3e-6, B = 6e-3;
template <typename T>
double lim(double f = F) {
    return sizeof(T) == 2 ? B : f;
}

template <typename T, typename Call>
void rows_alone(const std::string &name, const std::vector<T> &x, const std::vector<T> &out, int rows, int in, int outs,
                Call call) {
    bool ok = true;
    for (int r = 0; r < rows; r++) {
        std::vector<T> one(x.begin() + r * in, x.begin() + (r + 1) * in), got(outs + 64);
        one.resize(in + 64);
        call(one.data(), got.data(), 1);
        ok &= !memcmp(got.data(), out.data() + r * outs, outs * sizeof(T));
    }
    same(name + " a row alone", ok);
}

template <typename T, typename W>
void test_linear(const char *name, int pairs,
                 void (*f)(const T *, const W *, const float *, T *, int64_t, int64_t, int64_t)) {
    for (int rows : {1, 5, 13, 30})
        for (int in : {64, 129}) {
            const int outs = 2 * panel_width() + 5, w = panel_width(), steps = (in + pairs - 1) / pairs,
                      panels = (outs + w - 1) / w;
            typedef std::conditional_t<std::is_same_v<W, float>, float, bf16> N;
            auto x = make<T>(rows * in);
            auto bias = make<float>(outs);
            std::vector<N> dense(outs * in), packed((size_t)panels * steps * w * pairs + 4096);
            for (auto &d : dense) set(d, normal());
            for (int o = 0; o < outs; o++)
                for (int k = 0; k < in; k++)
                    packed[((size_t)(o / w * steps + k / pairs) * w + o % w) * pairs + k % pairs] = dense[o * in + k];
            std::vector<T> out(rows * outs + 64);
            D want(rows * outs);
            for (int r = 0; r < rows; r++)
                for (int o = 0; o < outs; o++) {
                    double s = bias[o];
                    for (int k = 0; k < in; k++) s += val(x[r * in + k]) * val(dense[o * in + k]);
                    want[r * outs + o] = s;
                }
            auto call = [&](const T *x, T *out, int rows) {
                f(x, (const W *)packed.data(), bias.data(), out, rows, in, outs);
            };
            call(x.data(), out.data(), rows);
            std::string n = std::string(name) + " " + std::to_string(rows) + "x" + std::to_string(in);
            check(n, out, want, lim<T>());
            rows_alone(n, x, out, rows, in, outs, call);
        }
}

// codes: BITS, and how many a word of x has (2: 16 bits or float, 4: 8 bits)
template <typename T, typename W>
void test_codes(const char *name, int bits, int columns, double limit,
                void (*f)(const T *, const W *, const float *, T *, int64_t, int64_t, int64_t)) {
    for (int rows : {1, 3, 9, 64})
        for (int minimum : {0, 1})
            for (int group : {32, 128}) {
                const int in = 256, outs = panel_width() + 3, w = panel_width(), groups = in / group,
                          numbers = 32 / bits, lines = 1 + minimum + group / numbers, panels = (outs + w - 1) / w,
                          middle = 1 << (bits - 1);
                auto x = make<T>(rows * in);
                std::vector<uint32_t> mem(16 + (size_t)panels * groups * lines * w + 8192);
                int64_t head[2] = {group, minimum};
                memcpy(mem.data(), head, 16);
                char *aligned = (char *)mem.data();
                std::vector<float> dense(outs * in);
                for (int o = 0; o < outs; o++)
                    for (int g = 0; g < groups; g++) {
                        float scale = 0.01 + 0.01 * std::fabs(normal()), least = 0.1 * normal();
                        uint32_t *at = mem.data() + 16 + ((size_t)(o / w * groups + g) * lines) * w + o % w;
                        memcpy(at, &scale, 4);
                        if (minimum) memcpy(at + w, &least, 4);
                        for (int i = 0; i < group; i++) {
                            uint32_t code = (seed >> 33) % (1 << bits);
                            uniform();
                            int n = i % numbers;
                            at[(1 + minimum + i / numbers) * w] |=
                                code << (32 / columns * (n % columns) + bits * (n / columns));
                            dense[o * in + g * group + i] = scale * ((int)code - middle) + (minimum ? least : 0);
                        }
                    }
                std::vector<T> out(rows * outs + 64);
                D want(rows * outs);
                for (int r = 0; r < rows; r++)
                    for (int o = 0; o < outs; o++) {
                        double s = 0;
                        for (int k = 0; k < in; k++) s += val(x[r * in + k]) * dense[o * in + k];
                        want[r * outs + o] = s;
                    }
                auto call = [&](const T *x, T *out, int rows) {
                    f(x, (const W *)aligned, nullptr, out, rows, in, outs);
                };
                call(x.data(), out.data(), rows);
                std::string n = std::string(name) + " rows" + std::to_string(rows) + " g" + std::to_string(group) +
                                (minimum ? "min" : "");
                check(n, out, want, limit);
                rows_alone(n, x, out, rows, in, outs, call);
            }
}

template <typename T>
void test_int8(const char *name, void (*f)(const T *, const int8s *, const float *, T *, int64_t, int64_t, int64_t)) {
    for (int rows : {1, 3, 14, 70}) {
        const int in = 260, outs = panel_width() + 3, w = panel_width(), size = has_tiles() ? 80 : 65,
                  panels = (outs + w - 1) / w;
        auto x = make<T>(rows * in);
        std::vector<int32_t> mem((size_t)panels * (2 + size) * w + 8192);
        std::vector<int> codes(outs * in);
        std::vector<float> scales(outs);
        for (int o = 0; o < outs; o++) {
            int32_t *at = mem.data() + (size_t)(o / w) * (2 + size) * w + o % w, sum = 0;
            scales[o] = 0.01f + 0.01f * std::fabs(normal());
            memcpy(at, &scales[o], 4);
            for (int k = 0; k < in; k++) {
                int c = (int)((seed >> 33) % 255) - 127;
                uniform();
                codes[o * in + k] = c;
                sum += c;
                ((int8_t *)(at + (2 + k / 4) * w))[k % 4] = c;
            }
            at[w] = sum;
        }
        std::vector<T> out(rows * outs + 64);
        D want(rows * outs);
        for (int r = 0; r < rows; r++) {
            float most = 0;
            for (int k = 0; k < in; k++) most = std::max(most, (float)std::fabs(val(x[r * in + k])));
            float s = most / 127;
            for (int o = 0; o < outs; o++) {
                int64_t sum = 0;
                for (int k = 0; k < in; k++)
                    sum += (int64_t)std::nearbyint((float)val(x[r * in + k]) / s) * codes[o * in + k];
                want[r * outs + o] = (double)sum * scales[o] * s;
            }
        }
        auto call = [&](const T *x, T *out, int rows) {
            f(x, (const int8s *)mem.data(), nullptr, out, rows, in, outs);
        };
        call(x.data(), out.data(), rows);
        std::string n = std::string(name) + " rows" + std::to_string(rows);
        check(n, out, want, lim<T>(1e-6));
        rows_alone(n, x, out, rows, in, outs, call);
    }
}

template <typename T>
void test_layers(const char *name, void (*norm)(const T *, T *, const float *, T *, int64_t, int64_t, float),
                 void (*rotary)(T *, const float *, const float *, const float *, const float *, int64_t, int64_t,
                                int64_t, int64_t, int64_t, float),
                 void (*silu)(const T *, T *, int64_t, int64_t)) {
    for (int size : {64, 37}) {
        const int rows = 3;
        auto x = make<T>(rows * size);
        auto weight = make<float>(size);
        std::vector<T> out(rows * size + 64);
        D want(rows * size);
        norm(x.data(), nullptr, weight.data(), out.data(), rows, size, 1e-6f);
        for (int r = 0; r < rows; r++) {
            double s = 0;
            for (int i = 0; i < size; i++) s += val(x[r * size + i]) * val(x[r * size + i]);
            for (int i = 0; i < size; i++)
                want[r * size + i] = val(x[r * size + i]) / std::sqrt(s / size + 1e-6) * weight[i];
        }
        check(std::string("add_rms_norm_") + name + " " + std::to_string(size), out, want, lim<T>());
        auto wide = make<T>(rows * 2 * size, 4);
        silu(wide.data(), out.data(), rows, size);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < size; i++) {
                double g = val(wide[r * 2 * size + i]);
                want[r * size + i] = g / (1 + std::exp(-g)) * val(wide[r * 2 * size + size + i]);
            }
        check(std::string("silu_mul_") + name + " " + std::to_string(size), out, want, lim<T>());
    }
    for (int size : {64, 24}) {
        const int tokens = 3, heads = 3, stride = (heads + 1) * size;
        auto x = make<T>(tokens * stride), y = x;
        auto w = make<float>(size), c = make<float>(tokens * size), s = make<float>(tokens * size);
        D want(tokens * stride);
        rotary(y.data(), w.data(), nullptr, c.data(), s.data(), tokens, stride, 2, 1, size, 1e-6f);
        for (int t = 0; t < tokens; t++)
            for (int h = 0; h <= heads; h++) {
                D v(size);
                double q = 0;
                for (int i = 0; i < size; i++) {
                    v[i] = val(x[t * stride + h * size + i]);
                    q += v[i] * v[i];
                }
                if (h < 2)
                    for (int i = 0; i < size; i++) v[i] *= w[i] / std::sqrt(q / size + 1e-6);
                for (int i = 0; i < size; i++)
                    want[t * stride + h * size + i] =
                        h == heads ? v[i] : v[i] * c[t * size + i] + v[(i + size / 2) % size] * s[t * size + i];
            }
        check(std::string("norm_rotary_") + name + " " + std::to_string(size), y, want, lim<T>());
    }
}

template <typename T, typename C>
void test_cache(const char *name, double limit,
                void (*store)(const T *, const T *, int64_t, int64_t, C *, C *, const int64_t *, int64_t, int64_t,
                              int64_t, int64_t),
                void (*dec)(const T *, int64_t, const C *, const C *, const int64_t *, const int64_t *, const int32_t *,
                            const int32_t *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float,
                            const Extras *, T *),
                void (*pre)(const T *, int64_t, const C *, const C *, const int64_t *, const int64_t *, const int32_t *,
                            const int32_t *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float,
                            const Extras *, T *)) {
    for (int size : {32, 112}) {
        const bool kind = size == 112;  // with what some models add
        const int len = 300, bs = 16, kv = 2, heads = 6, blocks = (len + bs - 1) / bs;
        const float scale = 1 / std::sqrt((float)size);
        auto k = make<T>(len * kv * size), v = make<T>(len * kv * size), q = make<T>(len * heads * size);
        std::vector<C> keys(blocks * bs * kv * (size + 64) + 4096), values = keys;
        std::vector<int64_t> slots(len);
        std::vector<int32_t> table(blocks);
        for (int b = 0; b < blocks; b++) table[b] = (b * 7) % blocks;
        for (int i = 0; i < len; i++) slots[i] = table[i / bs] * bs + i % bs;
        store(k.data(), v.data(), kv * size, kv * size, keys.data(), values.data(), slots.data(), len, bs, kv, size);
        Extras e;
        std::vector<float> sinks = {0.3f, -1, 2, 0, 1, -2};
        if (kind) {
            e.window = 70;
            e.soft_cap = 2;
            e.sinks = sinks.data();
        }
        auto want = [&](int position, int h) {
            D p(len), o(size);
            double most = kind ? sinks[h] : -1e30, sum;
            int first = std::max<int64_t>(0, position + 1 - e.window);
            for (int j = first; j <= position; j++) {
                double s = 0;
                for (int d = 0; d < size; d++)
                    s += val(q[(position * heads + h) * size + d]) * val(k[(j * kv + h / 3) * size + d]);
                s *= scale;
                if (kind) s = 2 * std::tanh(s / 2);
                p[j] = s;
                most = std::max(most, s);
            }
            sum = kind ? std::exp(sinks[h] - most) : 0;
            for (int j = first; j <= position; j++) sum += p[j] = std::exp(p[j] - most);
            for (int j = first; j <= position; j++)
                for (int d = 0; d < size; d++) o[d] += p[j] / sum * val(v[(j * kv + h / 3) * size + d]);
            return o;
        };
        int64_t query = len - 1, zero = 0;
        int32_t n = len;
        std::vector<T> out(len * heads * size + 64), one = out;
        D all;
        dec(q.data(), heads * size, keys.data(), values.data(), &query, &zero, &n, table.data(), blocks, 1, bs, heads,
            kv, size, scale, &e, out.data());
        for (int h = 0; h < heads; h++)
            for (double x : want(len - 1, h)) all.push_back(x);
        std::vector<T> last(out.begin() + (len - 1) * heads * size, out.end());
        std::string n1 = std::string(name) + " size" + std::to_string(size) + (kind ? " extras" : "");
        check("decode_" + n1, last, all, limit);
        int64_t span[2] = {200, 300};
        all.clear();
        pre(q.data(), heads * size, keys.data(), values.data(), span, &zero, &n, table.data(), blocks, 1, bs, heads, kv,
            size, scale, &e, out.data());
        std::vector<T> part;
        for (int t = 200; t < 300; t += 9) {  // the reference takes an emulator long
            for (int h = 0; h < heads; h++)
                for (double x : want(t, h)) all.push_back(x);
            part.insert(part.end(), out.begin() + t * heads * size, out.begin() + (t + 1) * heads * size);
        }
        check("prefill_" + n1, part, all, limit);
        int64_t cut[2] = {200, 250};
        int32_t n250 = 250;
        pre(q.data(), heads * size, keys.data(), values.data(), cut, &zero, &n250, table.data(), blocks, 1, bs, heads,
            kv, size, scale, &e, one.data());
        same("prefill_" + n1 + " cut",
             !memcmp(&one[200 * heads * size], &out[200 * heads * size], 50 * heads * size * sizeof(T)));
    }
}

// A layer of a decoder in one call, twice: by one thread and by three. The same bits, and a reference of its own calls
// is in the tests.
template <typename T, typename N, typename C>
void test_decoder(const char *name, int pairs,
                  void (*f)(const Shape *, const Step *, const Layer *, int64_t, int64_t, int64_t, const float *, T *,
                            T *, T *)) {
    const int hidden = 128, inter = 256, heads = 4, kv = 2, hs = 32, bs = 16, len = 40, w = panel_width();
    auto pack = [&](int outs, int in) {
        std::vector<N> p((size_t)((outs + w - 1) / w) * w * in + 4096);
        for (size_t i = 0; i < (size_t)outs * in; i++) set(p[i], normal() / std::sqrt((double)in));
        return p;
    };
    auto qkv = pack((heads + 2 * kv) * hs, hidden), o = pack(hidden, heads * hs), gu = pack(2 * inter, hidden),
         down = pack(hidden, inter);
    auto norm = make<float>(hidden);
    auto c = make<float>(len * hs), s = make<float>(len * hs), x = make<float>(len * hidden);
    std::vector<T> results[2];
    for (int turn = 0; turn < 2; turn++) {
        asked = turn ? 3 : 1;
        std::vector<C> keys(64 * kv * (hs + 64)), values = keys;
        Layer l = {};
        l.input_norm = l.post_norm = norm.data();
        l.qkv = {qkv.data(), nullptr};
        l.o = {o.data(), nullptr};
        l.gate_up = {gu.data(), nullptr};
        l.down = {down.data(), nullptr};
        l.keys = keys.data();
        l.values = values.data();
        Layer layers[2] = {l, l};
        std::vector<C> k2 = keys, v2 = keys;
        layers[1].keys = k2.data();
        layers[1].values = v2.data();
        Shape shape = {hidden, inter, heads, kv, hs, bs, nullptr, 1e-6f, 1 / std::sqrt((float)hs)};
        std::vector<int64_t> slots(len);
        for (int i = 0; i < len; i++) slots[i] = i;
        int64_t span[2] = {0, len}, zero = 0;
        int32_t n = len, table[4] = {0, 1, 2, 3};
        Step step = {len,     0,       1,    4,     0,  c.data(), s.data(), slots.data(),
                     nullptr, nullptr, span, &zero, &n, table,    nullptr};
        std::vector<T> res(len * hidden + 64), scratch(len * 4096), out(len * hidden + 64);
        for (int i = 0; i < len * hidden; i++) set(res[i], x[i]);
        f(&shape, &step, layers, 0, 2, 2, norm.data(), res.data(), scratch.data(), out.data());
        results[turn] = out;
    }
    D want;
    for (int i = 0; i < len * hidden; i++) want.push_back(val(results[0][i]));
    check(std::string("decoder_") + name, results[1], want, 0);
    same(std::string("decoder ") + name + " threads",
         !memcmp(results[0].data(), results[1].data(), len * hidden * sizeof(T)));
}

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
    if (argc > 1) dump = fopen(argv[1], "wb");
    set_threads([] { return asked; });
    printf("panel_width %d pairs %d tiles %d\n", panel_width(), has_bf16_pairs(), has_tiles());
    test_linear<float, float>("linear_float32", 1, linear_float32);
    test_linear<float, bf16>("linear_bfloat16", 1, linear_bfloat16);
    IF_PAIRS(if (!has_tiles()) test_linear<bf16, bf16_pair>("linear_bf16_pairs", 2, linear_bf16_pairs);)
    test_codes("float32_codes4", 4, 2, F, linear_float32_codes4);
    test_codes("float32_codes8", 8, 2, F, linear_float32_codes8);
    test_codes("float32_codes4_int8", 4, 4, 2e-2, linear_float32_codes4_int8);
    IF_PAIRS(test_codes("bfloat16_codes4", 4, 2, B, linear_bfloat16_codes4);
             test_codes("bfloat16_codes8", 8, 2, B, linear_bfloat16_codes8);
             test_codes("bfloat16_codes4_int8", 4, 4, 2e-2, linear_bfloat16_codes4_int8);
             test_int8("bfloat16_int8", linear_bfloat16_int8);)
    test_int8("float32_int8", linear_float32_int8);
    test_layers("float32", add_rms_norm_float32, norm_rotary_float32, silu_mul_float32);
    test_layers("bfloat16", add_rms_norm_bfloat16, norm_rotary_bfloat16, silu_mul_bfloat16);
    test_cache("float32_float32", 5e-6, store_kv_float32_float32, decode_float32_float32, prefill_float32_float32);
    test_cache("float32_bfloat16", 1e-2, store_kv_float32_bfloat16, decode_float32_bfloat16, prefill_float32_bfloat16);
    test_cache("bfloat16_bfloat16", 1e-2, store_kv_bfloat16_bfloat16, decode_bfloat16_bfloat16,
               prefill_bfloat16_bfloat16);
    test_cache("float32_int8", 2e-2, store_kv_float32_int8, decode_float32_int8, prefill_float32_int8);
    test_cache("bfloat16_int8", 2e-2, store_kv_bfloat16_int8, decode_bfloat16_int8, prefill_bfloat16_int8);
    test_decoder<float, float, float>("float32", 1, decoder_float32_float32_float32);
    IF_PAIRS(if (!has_tiles()) test_decoder<bf16, bf16, bf16>("bf16_pairs", 2, decoder_bfloat16_bf16_pairs_bfloat16);)
    printf("%d checks, %d failures\n", total, failures);
    if (dump) fclose(dump);
    return failures > 0;
}
