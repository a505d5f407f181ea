# slurm_cluster.sh FOLDER SCRIPT: a Slurm of two nodes, n1 and n2, in namespaces of its own, then SCRIPT in FOLDER. Started by
#   unshare --pid --fork --kill-child --mount-proc --net --uts --mount
# so that every process ends with this one, no port or host name clashes with others, and the machine keeps its files.
folder=$1 script=$2
cd "$folder" || exit 1
mkdir -p slurm/state slurm/n1 slurm/n2
hostname n1
ip link set lo up
# Slurm asks for addresses that an interface beside loopback can reach.
ip link add nodes type veth peer name other
ip addr add 10.213.8.1/24 dev nodes
ip addr add 10.213.8.2/24 dev nodes
ip link set nodes up
printf '127.0.0.1 localhost\n10.213.8.1 n1\n10.213.8.2 n2\n' >slurm/hosts
mount --bind slurm/hosts /etc/hosts
cat >slurm/slurm.conf <<CONF
ClusterName=trireme
SlurmctldHost=n1
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation=$folder/slurm/state
SlurmdSpoolDir=$folder/slurm/%n
SlurmctldPidFile=$folder/slurm/slurmctld.pid
SlurmdPidFile=$folder/slurm/%n.pid
SlurmctldLogFile=$folder/slurm/slurmctld.log
SlurmdLogFile=$folder/slurm/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
KillWait=60
MpiDefault=none
ReturnToService=2
NodeName=n1 NodeAddr=10.213.8.1 Port=6901 CPUs=4 State=UNKNOWN
NodeName=n2 NodeAddr=10.213.8.2 Port=6902 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$folder/slurm/slurm.conf
slurmctld -D >slurm/slurmctld.out 2>&1 &
slurmd -D -N n1 >slurm/n1.out 2>&1 &
slurmd -D -N n2 >slurm/n2.out 2>&1 &

tries=0
until [ "$(sinfo -h -N -o %T 2>/dev/null | grep -c idle)" = 2 ]; do
  tries=$((tries + 1))
  if [ "$tries" = 200 ]; then
    echo "Slurm did not start:"
    tail -n 5 slurm/*.log slurm/*.out
    exit 1
  fi
  sleep 0.1
done

# What the scripts wait for. Jobs are requeued after two minutes where nobody says that it may be now.
state_of() { scontrol -o show job "$1" | grep -o 'JobState=[A-Z_]*' | cut -d= -f2; }
restarts_of() { scontrol -o show job "$1" | grep -o 'Restarts=[0-9]*' | cut -d= -f2; }
wait_for() { # wait_for COMMAND...: until it succeeds; the test's deadline ends it
  until "$@" 2>/dev/null; do sleep 0.1; done
}
has_steps() { [ "$(wc -l 2>/dev/null <"$1/metrics.jsonl")" -ge "$2" ]; }
is_in() { case " $2 " in *" $(state_of "$1") "*) true ;; *) false ;; esac; }
start_again() { # start_again JOB COUNT: when it is requeued for the COUNT-th time
  # Not before the earlier start is over: its end would be taken for the end of the next one, for which Slurm's two minutes leave time.
  until [ "$(restarts_of "$1")" = "$2" ] && is_in "$1" PENDING && ! pgrep -x slurmstepd >/dev/null; do sleep 0.1; done
  while is_in "$1" PENDING; do # requeuing sets the time once more when it ends
    scontrol update jobid="$1" StartTime=now
    sleep 0.3
  done
}
rank_process() { # the process of a rank
  local process
  for process in $(pgrep -f 'trireme-rank train'); do
    tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qxE "(SLURM_PROCID|RANK)=$1" && echo "$process" && return
  done
}
source "$script"
