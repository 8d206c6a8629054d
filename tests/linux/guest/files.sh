# files FILE_SYSTEM IQN PORTAL: makes a file system, writes and checks files, then logs out and in again and checks the
# files and the file system once more.
files() {
  local kind=$1 iqn=$2 portal=$3 dev dir=/mnt/$1
  login "$iqn" "$portal"
  dev=$(disk "$iqn" "$portal")
  "mkfs.$kind" -q "$dev" || fail "mkfs.$kind"
  mkdir -p "$dir"
  mount -t "$kind" "$dev" "$dir" || fail "no mount of $kind"
  write_and_verify "$dir/random" 4k libaio
  tree "$dir/tree" || fail 'files'
  # Drops cached data and metadata, so that the next reads come from the disk.
  sync
  umount "$dir" || fail 'umount'
  logout "$iqn" "$portal"
  iscsiadm -m node -T "$iqn" -p "$portal" -l || fail 'no second login'
  dev=$(disk "$iqn" "$portal")
  mount -t "$kind" "$dev" "$dir" || fail 'no second mount'
  verify_again "$dir/random" 4k
  (cd "$dir/tree" && sha256sum -c -s sums) || fail 'a file has changed'
  umount "$dir"
  case $kind in
    ext4) e2fsck -f -n "$dev" ;;
    xfs) xfs_repair -n "$dev" ;;
  esac || fail "the file system is damaged"
}

fio_job() { # fio_job FILE BLOCK_SIZE ARGUMENTS...
  local file=$1 block=$2
  shift 2
  fio --name=job --filename="$file" --bs="$block" --size="${SIZE:-4M}" --direct=1 --verify=crc32c \
    --verify_fatal=1 --randseed=1 "$@" >/tmp/fio.$$ 2>&1 || {
    cat /tmp/fio.$$
    fail "fio $*"
  }
}

write_and_verify() { # write_and_verify FILE BLOCK_SIZE ENGINE
  fio_job "$1" "$2" --rw=randwrite --ioengine="$3" --iodepth=16 --end_fsync=1 --do_verify=1
}

verify_again() { # verify_again FILE BLOCK_SIZE: reads what write_and_verify left
  fio_job "$1" "$2" --rw=randwrite --ioengine=libaio --iodepth=16 --verify_only
}

# tree DIRECTORY: forty files of many sizes, and their checksums.
tree() {
  local number
  mkdir "$1" && cd "$1" || return 1
  for number in $(seq 40); do
    head -c $((number * number * 40)) /dev/urandom >"file$number"
  done
  sha256sum file* >sums
  cd /
}

# The first MiB of a fixed stream in which no two blocks are the same.
pattern() {
  [ -f /tmp/pattern.mib ] || seq 1 200000 | head -c 1048576 >/tmp/pattern.mib
}

fill() { # fill FILE_OR_DISK MEBIBYTES: writes the pattern so many times
  local number
  pattern
  for number in $(seq "$2"); do cat /tmp/pattern.mib; done | dd of="$1" bs=1M iflag=fullblock oflag=direct 2>/dev/null ||
    fail "no write to $1"
}

sum_of() { # sum_of FILE_OR_DISK FIRST_MEBIBYTE MEBIBYTES
  dd if="$1" bs=1M skip="$2" count="$3" iflag=direct 2>/dev/null | md5sum
}

filled() { # filled DISK FIRST_MEBIBYTE MEBIBYTES: the pattern is still there
  local number
  pattern
  equals "MiB $2+$3 of $1" "$(for number in $(seq "$3"); do cat /tmp/pattern.mib; done | md5sum)" \
    "$(sum_of "$1" "$2" "$3")"
}

zeroes() { # zeroes DISK FIRST_MEBIBYTE MEBIBYTES
  equals "MiB $2+$3 of $1" "$(head -c $(($3 * 1048576)) /dev/zero | md5sum)" "$(sum_of "$1" "$2" "$3")"
}
