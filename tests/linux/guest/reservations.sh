# Persistent reservations (SPC-4 5.13) through sg_persist.

two_sessions() { # two_sessions IQN PORTAL
  login "$1" "$2" node.session.nr_sessions=2
  until_true 200 logged_in "$1" 2
  until_true 200 has_disks "$1" 2
}

# logged_in IQN SESSIONS: this many sessions of this target are up.
logged_in() {
  local session count=0
  for session in /sys/class/iscsi_session/session*; do
    [ "$(cat "$session/targetname" 2>/dev/null)" = "$1" ] || continue
    [ "$(cat "$session/state")" = LOGGED_IN ] && count=$((count + 1))
  done
  [ "$count" = "$2" ]
}

has_disks() { [ "$(disks "$1" | wc -l)" = "$2" ]; } # has_disks IQN COUNT

persist() { sg_persist --no-inquiry "$@" || fail "sg_persist $*"; }

holds_key() { # holds_key DISK KEY: the reservation's holder has this key
  local said
  said=$(persist --in --read-reservation "$1")
  case $said in *"Key=$2"*) ;; *) fail "key $2 does not hold the reservation: $said" ;; esac
}

may_write() { dd if=/dev/zero of="$1" bs=4k count=1 oflag=direct 2>/dev/null; }

# The kernel's disk driver repeats a command that got a unit attention; sg_persist does not.
settle() { sg_turs "$1" >/dev/null 2>&1; may_read "$1"; }
may_read() { dd if="$1" of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null; }

# reserve_from HOLDER OTHER [OPTION]: registers and reserves from one session, and the other may
# read and not write.
reserve_from() {
  local holder=$1 other=$2
  shift 2
  settle "$holder"
  settle "$other"
  persist --out --register --param-sark=0xaa "$@" "$holder"
  persist --out --reserve --param-rk=0xaa --prout-type=5 "$holder"
  still_reserved_from "$holder" "$other"
}

still_reserved_from() { # still_reserved_from HOLDER OTHER
  settle "$1"
  settle "$2"
  holds_key "$2" 0xaa
  may_write "$1" || fail 'the holder may not write'
  ! may_write "$2" || fail 'the other session may write'
  may_read "$2" || fail 'the other session may not read'
}

# preempt_from TAKER LOSER: registers from a second session, takes the reservation with the first
# one's key, and it is the first that may not write.
preempt_from() {
  persist --out --register --param-sark=0xbb "$1"
  may_write "$1" || fail 'a registrant may not write'
  ! sg_persist --no-inquiry --out --preempt --param-rk=0xcc --param-sark=0xaa --prout-type=5 "$1" ||
    fail 'a key that nobody registered preempts'
  persist --out --preempt --param-rk=0xbb --param-sark=0xaa --prout-type=5 "$1"
  holds_key "$1" 0xbb
  settle "$2"
  may_write "$1" || fail 'the new holder may not write'
  ! may_write "$2" || fail 'who was preempted may write'
  persist --out --clear --param-rk=0xbb "$1"
  settle "$2"
  may_write "$2" || fail 'a reservation that was cleared keeps somebody out'
}
