# Functions that the checks' commands are made of. Each ends the command that calls it when it
# fails, with a line that says what was expected.

fail() { echo "FAILED: $*"; exit 1; }

# node IQN PORTAL [SETTING=VALUE]...: a node record with these settings, without discovery.
node() {
  local iqn=$1 portal=$2 setting settings=
  shift 2
  iscsiadm -m node -o new -T "$iqn" -p "$portal" >/dev/null || fail "no record of $iqn"
  for setting; do settings="$settings -n ${setting%%=*} -v ${setting#*=}"; done
  # In one call: each is a program's start, which emulation makes dear.
  [ -z "$settings" ] || iscsiadm -m node -o update -T "$iqn" -p "$portal" $settings ||
    fail "not taken: $settings"
}

# login IQN PORTAL [SETTING=VALUE]...: logs in and waits for the disk of LUN 0.
login() {
  node "$@"
  iscsiadm -m node -T "$1" -p "$2" -l || fail "no login to $1"
  disk "$1" "$2" >/dev/null
}

# logout IQN PORTAL
logout() {
  undisturbed iscsiadm -m node -T "$1" -p "$2" -u || fail "no logout from $1"
}

# undisturbed COMMAND...: with udev at rest. It looks at a disk each time that a writer closes it, and
# a disk that goes while it does makes the kernel complain.
undisturbed() {
  local code=0
  resume
  udevadm control --stop-exec-queue
  "$@" || code=$?
  udevadm control --start-exec-queue
  resume
  return $code
}

# resume: waits until udev has done all it was to do. udev 252 now and then does not go on when it is told to
# start its queue again, until it is told once more: what was logged in next then had no disk for two minutes.
resume() {
  local tries=0
  until udevadm settle --timeout=10; do
    tries=$((tries + 1))
    [ $tries -lt 20 ] || fail 'udev does not go on'
    udevadm control --stop-exec-queue
    udevadm control --start-exec-queue
  done
}

# disk IQN PORTAL [LUN]: prints the disk, /dev/sdX, once udev knows it.
disk() {
  local link=/dev/disk/by-path/ip-$2-iscsi-$1-lun-${3:-0} tries=0
  while [ ! -e "$link" ]; do
    tries=$((tries + 1))
    [ $tries -lt 1000 ] || fail "udev made no $link"
    sleep 0.1
  done
  realpath "$link"
}

# disks IQN: prints the disks of all sessions of a target, a line each, in order of their sessions.
disks() {
  local session device
  for session in /sys/class/iscsi_session/session*; do
    [ "$(cat "$session/targetname" 2>/dev/null)" = "$1" ] || continue
    for device in "$session"/device/target*/*/block/*; do
      [ -e "$device" ] && echo "/dev/${device##*/}"
    done
  done
}

# until_true SECONDS COMMAND...: waits until the command succeeds.
until_true() {
  local end=$(($(cut -d. -f1 /proc/uptime) + $1)) seconds=$1
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$(cut -d. -f1 /proc/uptime)" -lt "$end" ] || fail "not so after $seconds s: $*"
    sleep 0.2
  done
}

equals() { # equals WHAT EXPECTED FOUND
  [ "$2" = "$3" ] || fail "$1: expected $2, found $3"
}

# Leaves the machine as it was before a check, also one that failed half way.
tidy() {
  local mounted
  grep ' /mnt/' /proc/mounts | cut -d ' ' -f 2 | while read -r mounted; do umount "$mounted"; done
  if pidof multipathd >/dev/null; then
    multipath -F
    killall multipathd
    until_true 200 gone multipathd
  fi
  if nbd_is_connected; then nbd_end; fi
  if iscsiadm -m session >/dev/null 2>&1; then undisturbed iscsiadm -m node -U all; fi
  rm -rf /etc/iscsi/nodes /etc/iscsi/send_targets /mnt/*
  ! iscsiadm -m session 2>/dev/null || fail 'a session is left'
}

not() { ! "$@"; }

has_module() { modprobe -n -q "$1"; } # has_module NAME: this kernel has it

# gone NAME: no such program runs; one that only nobody has waited for does not count.
gone() {
  local pid
  for pid in $(pidof "$1"); do
    grep -q '^State:.Z' "/proc/$pid/status" 2>/dev/null || return 1
  done
}

# facts DISK: what the kernel and udev know of a disk, NAME=VALUE.
facts() {
  local sys=/sys/block/${1##*/}
  echo "size=$(blockdev --getsize64 "$1")"
  echo "ro=$(blockdev --getro "$1")"
  echo "logical=$(cat "$sys/queue/logical_block_size")"
  echo "physical=$(cat "$sys/queue/physical_block_size")"
  echo "cache=$(cat "$sys/queue/write_cache")"
  echo "fua=$(cat "$sys/queue/fua")"
  echo "vendor=$(cat "$sys/device/vendor")"
  echo "model=$(cat "$sys/device/model")"
  echo "wwid=$(cat "$sys/device/wwid")"
  echo "serial=$(sg_inq --page=sn --raw "$1" | tail -c +5)"
  echo "by-id=$(udevadm info --query=property --name="$1" | sed -n 's/^ID_SERIAL=//p')"
}
