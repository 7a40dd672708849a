/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One gnuplot script for each picture: the data, then the same drawing twice, for SVG and for PNG. gnuplot works in a
 * folder of its own and knows no other names; what it drew is copied out whole.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/report_gnuplot.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/record.h"
#include "bench/lib/run.h"
#include "bench/lib/why.h"

#define GNUPLOT_S 60
#define PICTURE_BYTES_MAX ((size_t)64 << 20)

/* ---- Pieces of scripts ----------------------------------------------------------------------------------------- */

void afdep_gnuplot_quote(FILE *out, const char *text)
{
    fputc('\'', out);
    for (; *text; text++) {
        if (*text == '\'' || *text == '`')
            fputs("\u2019", out);
        else
            fputc((unsigned char)*text < 0x20 ? ' ' : *text, out);
    }
    fputc('\'', out);
}

void afdep_gnuplot_number(FILE *out, double value)
{
    if (isfinite(value))
        fprintf(out, " %.9g", value);
    else
        fputs(" NaN", out);
}

static void styles(FILE *out)
{
    static const char *const colours[AFDEP_GNUPLOT_STYLES] = { "#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                               "#E69F00", "#56B4E9", "#000000", "#7F7F7F" };
    static const int points[AFDEP_GNUPLOT_STYLES] = { 7, 5, 9, 13, 6, 4, 8, 12 },
                     dashes[AFDEP_GNUPLOT_STYLES] = { 1, 2, 4, 5, 3, 2, 4, 5 };
    for (int i = 0; i < AFDEP_GNUPLOT_STYLES; i++)
        fprintf(out, "set linetype %d lc rgb '%s' lw 2 pt %d ps 1.1 dt %d\n", i + 1, colours[i], points[i], dashes[i]);
    fprintf(out, "set linetype cycle %d\n", AFDEP_GNUPLOT_STYLES);
}

void afdep_gnuplot_log_axis(FILE *out, const char *axis, double low, double high)
{
    static const double steps[] = { 1, 2, 5 };
    int count = high / low > 3000 ? 1 : 3, any = 0;
    fprintf(out, "set logscale %s 10\nset %stics (", axis, axis);
    for (double power = pow(10, floor(log10(low)) - 1); power < high * 10; power *= 10)
        for (int i = 0; i < count; i++)
            if (power * steps[i] >= low / 2 && power * steps[i] <= high * 2)
                fprintf(out, "%s'%g' %g", any++ ? "," : "", power * steps[i], power * steps[i]);
    fprintf(out, ")\nset %srange [%g:%g]\n", axis, low, high);
}

/* ---- Running gnuplot ------------------------------------------------------------------------------------------- */

static void write_script(FILE *out, const afdep_drawing_t *drawing)
{
    drawing->data(out, drawing->context);
    for (int png = 0; png < 2; png++) {
        if (png)
            fprintf(out,
                    "if (strstrt(GPVAL_TERMINALS, 'pngcairo')) {\n"
                    "set terminal pngcairo noenhanced size 800,%d font 'DejaVu Sans,12' background '#ffffff'\n"
                    "} else {\nset terminal png noenhanced size 800,%d\n}\nset output 'picture.png'\n",
                    drawing->height, drawing->height);
        else
            fprintf(out,
                    "set terminal svg noenhanced size 800,%d font 'DejaVu Sans,Verdana,Helvetica,sans-serif,13' "
                    "background '#ffffff'\nset output 'picture.svg'\n",
                    drawing->height);
        styles(out);
        drawing->draw(out, drawing->context);
        fputs("unset output\nreset\n", out);
    }
}

static int run_gnuplot(const char *scratch, int signals, char *why, size_t why_size)
{
    static char program[] = "gnuplot", script[] = "picture.gnuplot";
    char *argv[] = { program, script, NULL };
    afdep_run_t run = { .argv = argv, .folder = scratch, .deadline_s = GNUPLOT_S, .grace_s = 1 };
    char words[128], said[256];
    afdep_run(signals, &run);
    if (run.end == AFDEP_RUN_NOT_STARTED && run.code == ENOENT)
        return afdep_why(why, why_size, "gnuplot: is not installed; pictures are drawn by it");
    if (run.end == AFDEP_RUN_EXITED && run.code == 0)
        return 0;
    afdep_run_last_line(&run, program, said, sizeof(said));
    return afdep_why(why, why_size, "gnuplot: %s: %s", afdep_run_words(&run, words, sizeof(words)), said);
}

/* ---- Files ----------------------------------------------------------------------------------------------------- */

/* FOLDER/NAME and what it holds. NULL with one line. */
static char *read_file(const char *folder, const char *name, size_t *size, char *why, size_t why_size)
{
    char *file = NULL, *bytes = NULL;
    long length = -1;
    FILE *in = asprintf(&file, "%s/%s", folder, name) < 0 ? NULL : fopen(file, "rbe");
    if (in && fseek(in, 0, SEEK_END) == 0)
        length = ftell(in);
    if (length > 0 && (size_t)length <= PICTURE_BYTES_MAX && fseek(in, 0, SEEK_SET) == 0)
        bytes = malloc((size_t)length);
    if (bytes && fread(bytes, 1, (size_t)length, in) != (size_t)length) {
        free(bytes);
        bytes = NULL;
    }
    *size = bytes ? (size_t)length : 0;
    if (!bytes)
        afdep_why(why, why_size, "gnuplot: drew no %s", name);
    if (in)
        fclose(in);
    free(file);
    return bytes;
}

static int write_file(const char *folder, const char *name, const char *bytes, size_t size, char *why, size_t why_size)
{
    char *file = NULL;
    if (asprintf(&file, "%s/%s", folder, name) < 0)
        return afdep_why(why, why_size, "%s: no memory for its name", name);
    int status = afdep_file_write(file, bytes, size, why, why_size);
    free(file);
    return status;
}

static int make_script(const afdep_drawing_t *drawing, const char *scratch, char *why, size_t why_size)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out)
        write_script(out, drawing);
    int status = !out || fclose(out) != 0 ? afdep_why(why, why_size, "no memory for a picture")
                                          : write_file(scratch, "picture.gnuplot", text, size, why, why_size);
    free(text);
    return status;
}

/* Takes both pictures out of the scratch folder; the SVG's content stays with the caller. */
static int keep(const char *scratch, const char *folder, afdep_picture_t *picture, char *why, size_t why_size)
{
    size_t size = 0;
    char name[sizeof(picture->file)];
    char *png = read_file(scratch, "picture.png", &size, why, why_size);
    snprintf(name, sizeof(name), "%.*s.png", (int)strlen(picture->file) - 4, picture->file);
    int status = png ? write_file(folder, name, png, size, why, why_size) : -1;
    free(png);
    if (status == 0)
        picture->svg = read_file(scratch, "picture.svg", &picture->size, why, why_size);
    if (!picture->svg)
        return -1;
    return write_file(folder, picture->file, picture->svg, picture->size, why, why_size);
}

static void remove_scratch(const char *scratch)
{
    static const char *const files[] = { "picture.gnuplot", "picture.svg", "picture.png" };
    int folder = open(scratch, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; folder >= 0 && i < sizeof(files) / sizeof(files[0]); i++)
        unlinkat(folder, files[i], 0);
    if (folder >= 0)
        close(folder);
    rmdir(scratch);
}

int afdep_gnuplot_draw(const afdep_drawing_t *drawing, const char *folder, int signals, afdep_picture_t *picture,
                       char *why, size_t why_size)
{
    const char *temporary = getenv("TMPDIR");
    char scratch[512];
    memset(picture, 0, sizeof(*picture));
    picture->caption = drawing->caption;
    snprintf(picture->file, sizeof(picture->file), "%s.svg", drawing->name);
    snprintf(scratch, sizeof(scratch), "%.480s/afdep-report-XXXXXX", temporary && temporary[0] ? temporary : "/tmp");
    if (!mkdtemp(scratch))
        return afdep_why(why, why_size, "%s: cannot be made: %s", scratch, strerror(errno));
    int status = make_script(drawing, scratch, why, why_size);
    if (status == 0)
        status = run_gnuplot(scratch, signals, why, why_size);
    if (status == 0)
        status = keep(scratch, folder, picture, why, why_size);
    remove_scratch(scratch);
    return status;
}
