# SPDX-License-Identifier: Apache-2.0
# Sourced by the batch files of this folder: their options, where the ranks go, and what starts them. Expects `script`,
# the batch file's name without its ending.
# shellcheck shell=bash disable=SC2154,SC2034

job_stop() {
    printf '%s.sbatch: %s\n' "$script" "$*" >&2
    exit 2
}

# job_options ARGUMENT...: sets screen, scenario, suite, out, with, mpi, flags, build, and rest (what stands after --).
job_options() {
    screen='' scenario='' suite='' out='' with=srun mpi=pmix flags=() build='' rest=()
    local name value
    while [ $# -gt 0 ]; do
        name=$1 value=''
        case $name in
        --) rest=("${@:2}") && break ;;
        --help) sed -n '3,/^#SBATCH/{/^#SBATCH/d;s/^# \{0,1\}//p}' "$0" && exit 0 ;;
        --*=*) value=${name#*=} name=${name%%=*} ;;
        --*)
            [ $# -gt 1 ] || job_stop "$name: its value is missing"
            value=$2 && shift
            ;;
        *) job_stop "$name: is no option (what belongs to the program goes after --)" ;;
        esac
        case $script$name in
        screen--screen) screen=$value ;;
        validate--scenario) scenario=$value ;;
        validate--suite) suite=$value ;;
        *--out) out=$value ;;
        *--launcher) with=$value ;;
        *--mpi) mpi=$value ;;
        *--launcher-flags) read -ra flags <<<"$value" ;;
        *--build) build=$value ;;
        *) job_stop "$name: is no option of this batch file (what belongs to the program goes after --)" ;;
        esac
        shift
    done
}

# ---- Files

scenario_of_screen() { # scenario_of_screen FILE: beside the screen, else from the working directory
    python3 - "$1" <<'E2'
import json, os, sys
try:
    with open(sys.argv[1], encoding="utf-8") as file:
        name = json.load(file)["scenario"]
except (OSError, ValueError, KeyError, TypeError) as error:
    sys.exit(f"{sys.argv[1]}: is no screen that can be read: {error!r}")
beside = os.path.normpath(os.path.join(os.path.dirname(sys.argv[1]), name))
print(beside if os.path.exists(beside) else name)
E2
}

# launch_screen FROM TO: the screen with the job's launcher in every arm, and its scenario wherever TO may be.
launch_screen() {
    python3 - "$1" "$2" "$(realpath "$scenario")" "${launcher[@]}" <<'E2'
import json, sys
source, target, scenario, *launcher = sys.argv[1:]
with open(source, encoding="utf-8") as file:
    screen = json.load(file)
screen["scenario"] = scenario
for arm in screen["arms"]:
    arm["launcher"] = launcher
with open(target, "w", encoding="utf-8") as file:
    json.dump(screen, file, indent=2)
    file.write("\n")
E2
}

# ---- Ranks

topology() { # topology FILE: FFN ranks, ranks, ranks per domain
    python3 - "$1" <<'E2'
import json, sys
try:
    with open(sys.argv[1], encoding="utf-8") as file:
        t = json.load(file)["topology"]
    print(t["ffn_ranks"], t["ffn_ranks"] + t["attention_ranks"], t["ranks_per_domain"])
except (OSError, ValueError, KeyError, TypeError) as error:
    sys.exit(f"{sys.argv[1]}: is no scenario that can be read: {error!r}")
E2
}

# The allocation's tasks on every node; nothing where they differ.
tasks_per_node() {
    local tasks=${SLURM_NTASKS_PER_NODE:-${SLURM_TASKS_PER_NODE:-}}
    [[ $tasks =~ ^([0-9]+)(\(x[0-9]+\))?$ ]] && echo "${BASH_REMATCH[1]}"
}

# job_begin PROGRAM SCENARIO: checks that the job fits; sets scenario, ranks, per_node, build, out, launcher.
job_begin() {
    local numbers ffn per_domain nodes
    scenario=$2
    command -v python3 >/dev/null || job_stop "python3 is not there (on the first node of the job), and reads the scenario"
    [ -n "$scenario" ] || exit 2 # scenario_of_screen said why
    numbers=$(topology "$scenario") || exit 2
    read -r ffn ranks per_domain <<<"$numbers"
    ffn_ranks=$ffn
    if [ -z "${SLURM_JOB_ID:-}" ]; then
        echo "This is a batch file; for $scenario ($ranks ranks in domains of $per_domain) submit it with" >&2
        echo "  sbatch --nodes=$(((ranks + per_domain - 1) / per_domain)) --ntasks-per-node=$per_domain scripts/slurm/$script.sbatch ..." >&2
        exit 2
    fi
    nodes=$SLURM_JOB_NUM_NODES per_node=$(tasks_per_node)
    [ -n "$per_node" ] || job_stop "the job has ${SLURM_TASKS_PER_NODE:-no count of} tasks per node: give --ntasks-per-node=$per_domain"
    [ $((per_node % per_domain)) -eq 0 ] ||
        job_stop "$per_node tasks per node would tear domains of $per_domain ranks apart: give --ntasks-per-node=$per_domain"
    [ $((nodes * per_node)) -eq "$ranks" ] ||
        job_stop "$nodes nodes of $per_node tasks are not the $ranks ranks of $scenario: give --nodes=$((ranks / per_node)) --ntasks-per-node=$per_node"
    find_build "$1"
    out=${out:-results/local/slurm-$script-$SLURM_JOB_ID}
    mkdir -p "$out" || job_stop "$out: cannot be made"
    case $with in
    srun) launch_with_srun ;;
    mpirun) launch_with_mpirun ;;
    *) job_stop "--launcher: \"$with\" is neither srun nor mpirun" ;;
    esac
    printf '# job %s: %s, %d ranks, %d per node on %s (%d domain(s) per node)\n' "$SLURM_JOB_ID" "$scenario" "$ranks" \
        "$per_node" "$SLURM_JOB_NODELIST" $((per_node / per_domain))
    # One host has shared memory; between hosts there is MPI, unless the user knows better.
    if [ "$nodes" -gt 1 ] && [[ " ${rest[*]}" != *" --fabric"* ]]; then
        rest=(--fabric "${AFDEP_FABRIC:-mpi}" "${rest[@]}")
    fi
    printf '# started by: %s\n# results: %s\n' "${launcher[*]}" "$out"
}

find_build() { # find_build PROGRAM
    local folder
    for folder in ${build:+"$build"} ${build:-build build/check/gcc}; do
        [ ! -x "$folder/$1" ] || { build=$(realpath "$folder"); return; }
    done
    job_stop "$1 is not in ${build:-build or build/check/gcc}: build first (docs/building.md), or name the folder with --build"
}

launch_with_srun() {
    local plugins
    plugins=$(srun --mpi=list 2>&1)
    grep -qw -- "$mpi" <<<"$plugins" ||
        job_stop "srun has no plug-in \"$mpi\" for MPI, but: $(tr '\n\t' '  ' <<<"$plugins"). Give --mpi TYPE, or --launcher mpirun"
    launcher=(srun "--mpi=$mpi" "--ntasks=$ranks" "--ntasks-per-node=$per_node" --distribution=block --kill-on-bad-exit=1)
    # Unlike sbatch's other requests, this one does not reach srun by itself.
    [ -z "${SLURM_CPUS_PER_TASK:-}" ] || launcher+=("--cpus-per-task=$SLURM_CPUS_PER_TASK")
    launcher+=("${flags[@]}")
}

launch_with_mpirun() {
    command -v mpirun >/dev/null || job_stop "mpirun is not there: load your cluster's module of Open MPI before sbatch"
    mpirun --version 2>&1 | grep -q 'Open MPI' || job_stop "mpirun is not Open MPI's, whose words for placement differ: use --launcher srun with --mpi"
    launcher=(mpirun -n "$ranks" --map-by "ppr:$per_node:node" "${flags[@]}")
    [ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

# Says where every rank is, and stops where that is not in blocks: a domain on two nodes would not be a domain.
job_place() {
    # shellcheck disable=SC2016 # expanded by each rank
    "${launcher[@]}" sh -c 'echo ${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-$SLURM_PROCID}}} ${SLURMD_NODENAME:-$(hostname)}' \
        </dev/null >"$out/placement.txt" || job_stop "$with cannot start $ranks ranks"
    sort -n -o "$out/placement.txt" "$out/placement.txt"
    awk -v ranks="$ranks" -v per_node="$per_node" -v ffn="$ffn_ranks" '
        { rank = NR - 1; block = int(rank / per_node) }
        $1 != rank { wrong = 1 }
        rank % per_node == 0 { if ($2 in seen) wrong = 1; seen[$2] = 1; node[block] = $2 }
        $2 != node[block] { wrong = 1 }
        { roles[block] = roles[block] (rank < ffn ? " F" : " A") rank }
        END { if (wrong || NR != ranks) exit 1; for (i = 0; i <= block; i++) print "# node " node[i] ":" roles[i] }' \
        "$out/placement.txt" || job_stop "ranks are not placed in blocks of $per_node per node: $out/placement.txt says where they are"
}

# Pictures, where the first node can make them.
job_report() {
    [ -e "$out/benchmarks.json" ] && [ -x "$build/bench/afdep-report" ] && command -v gnuplot >/dev/null || return 0
    "$build/bench/afdep-report" --in "$out/benchmarks.json" --out "$out"
}
