/* SPDX-License-Identifier: Apache-2.0 */
/* Medians, Student's t in closed form, and paired changes. */
#include "bench/lib/stats.h"

#include <math.h>
#include <stdlib.h>

#define AFDEP_CONFIDENCE 0.95
#define AFDEP_PI 3.14159265358979323846

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double afdep_median(double *values, int count)
{
    if (count < 1)
        return NAN;
    qsort(values, (size_t)count, sizeof(double), ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* The finite series in cos(theta), tan(theta) = t / sqrt(freedom), that integer degrees of freedom have (Abramowitz and
   Stegun, 26.7.3 and 26.7.4). */
double afdep_student_within(double t, int freedom)
{
    double theta = atan(t / sqrt(freedom)), cosine = cos(theta), term = 1, sum = 0;
    int odd = freedom % 2;
    if (odd)
        term = cosine;
    for (int k = odd ? 3 : 2; k <= freedom; k += 2) {
        sum += term;
        term *= cosine * cosine * (k - 1) / k;
    }
    return odd ? 2 / AFDEP_PI * (theta + sin(theta) * sum) : sin(theta) * sum;
}

double afdep_student_quantile(double probability, int freedom)
{
    double low = 0, high = 1;
    while (afdep_student_within(high, freedom) < probability)
        high *= 2;
    for (int i = 0; i < 100; i++) {
        double middle = (low + high) / 2;
        if (afdep_student_within(middle, freedom) < probability)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

static double percent(double logarithm)
{
    return (exp(logarithm) - 1) * 100;
}

afdep_paired_t afdep_pair(const double *baseline, const double *candidate, int count)
{
    afdep_paired_t paired = { 0, NAN, NAN, NAN };
    double sum = 0, squares = 0;
    if (count < 1)
        return paired;
    for (int i = 0; i < count; i++)
        sum += log(candidate[i] / baseline[i]);
    double mean = sum / count;
    for (int i = 0; i < count; i++) {
        double off = log(candidate[i] / baseline[i]) - mean;
        squares += off * off;
    }
    paired.repeats = count;
    paired.change_pct = percent(mean);
    if (count > 1) {
        double half = afdep_student_quantile(AFDEP_CONFIDENCE, count - 1) * sqrt(squares / (count - 1) / count);
        paired.change_low_pct = percent(mean - half);
        paired.change_high_pct = percent(mean + half);
    }
    return paired;
}

const char *afdep_paired_verdict(const afdep_paired_t *paired)
{
    if (paired->repeats == 0)
        return "not measured";
    if (paired->repeats == 1)
        return "one repeat";
    if (paired->change_high_pct < 0)
        return "faster";
    return paired->change_low_pct > 0 ? "slower" : "no difference seen";
}
