# Paths that come and go, under a load that verifies its own data.

# Settings that notice a dead link within seconds and try again every second or two.
QUICK='node.conn[0].timeo.noop_out_interval=1 node.conn[0].timeo.noop_out_timeout=2
  node.conn[0].timeo.login_timeout=5'

# two_paths IQN PORTAL: two sessions to one portal under multipath, which fail fast once a connection is closed. Without
# quick pings, because a pause of the machine would then fail the other path, too.
two_paths() {
  multipathd
  until_true 200 multipathd show status
  login "$1" "$2" node.session.nr_sessions=2 node.session.timeo.replacement_timeout=2 \
    node.conn[0].timeo.login_timeout=5
  until_true 200 has_disks "$1" 2
  until_true 200 map_of "$1"
}

map_of() { # map_of IQN: prints the multipath device above the target's disks
  local disk holder
  for disk in $(disks "$1"); do
    for holder in /sys/block/"${disk##*/}"/holders/*; do
      [ -e "$holder" ] && echo "/dev/${holder##*/}" && return
    done
  done
  return 1
}

# paths_are IQN ACTIVE FAILED: succeeds if the kernel's multipath reports these numbers of paths.
paths_are() {
  local status found
  status=$(dmsetup status "$(cat "/sys/block/$(basename "$(map_of "$1")")/dm/name")")
  found="$(count_of A "$status") $(count_of F "$status")"
  [ "$found" = "$2 $3" ] || { echo "$status"; return 1; }
}
count_of() { echo "$2" | grep -o "[0-9]*:[0-9]* $1" | wc -l; }

# load DISK: rounds of random writes, each read back and verified, until last_round.
load() {
  local round=0
  rm -f /tmp/load.last
  while :; do
    round=$((round + 1))
    SIZE=2M fio_job "$1" 4k --rw=randwrite --ioengine=libaio --iodepth=8 --do_verify=1 --time_based=0
    echo "$round" >/tmp/load.new && mv /tmp/load.new /tmp/load.rounds
    [ $round = 1 ] && echo 'load: first round written'
    [ ! -e /tmp/load.last ] || break
  done
  echo "load: $round rounds"
}

# another_round: waits until a round has begun and ended after this moment.
another_round() {
  local wanted=$(($(cat /tmp/load.rounds) + 2))
  until_true 200 rounds_reach "$wanted"
}
rounds_reach() { [ "$(cat /tmp/load.rounds)" -ge "$1" ]; }

last_round() { touch /tmp/load.last; }
