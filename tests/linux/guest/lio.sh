# The kernel's own target (LIO), configured through configfs.

LIO=/sys/kernel/config/target
LIO_ADDRESS=10.0.2.15 # eth0, to which QEMU forwards the ports 3260 and 3261

# lio_begin: makes the target ready.
lio_begin() {
  modprobe -a iscsi_target_mod target_core_file target_core_iblock || fail 'no target'
  mount -t configfs config /sys/kernel/config
  mkdir -p /var/target/pr "$LIO/iscsi"
  # A portal closes with its last target, and cannot be opened again until its socket has gone. This target, which is
  # never enabled and so never reported, keeps both open while tests come and go.
  local group
  for group in 1 2; do
    mkdir -p "$LIO/iscsi/iqn.2026-11.io.sanstone:portals/tpgt_$group/np/$LIO_ADDRESS:$((3259 + group))" ||
      fail "no portal $group"
  done
}

# lio_serve IQN file|ram|device MEBIBYTES BLOCK_SIZE: a disk of zeroes as LUN 0 of a target that admits every initiator.
# Portal groups 1 and 2 have one portal each, and the disk has a target port group for each.
lio_serve() {
  local iqn=$1 name=${1##*:} core group
  core=$(lio_core "$iqn" "$2")
  mkdir -p "$core" || fail "no $2 disk"
  case $2 in
    ram) echo "rd_pages=$(($3 << 8))" ;;
    file) truncate -s "$3M" "/tmp/$name.img" &&
      echo "fd_dev_name=/tmp/$name.img,fd_dev_size=$(($3 << 20)),fd_buffered_io=1" ;;
    device) truncate -s "$3M" "/tmp/$name.img" &&
      echo "udev_path=$(losetup -f --show --sector-size "$4" "/tmp/$name.img")" ;;
  esac >"$core/control"
  # The disk's NAA name is made of the hexadecimal digits in it.
  echo "$name" | md5sum | head -c 32 >"$core/wwn/vpd_unit_serial"
  echo 1 >"$core/enable" || fail "the $2 disk cannot be used"
  [ "$2" = device ] || echo "$4" >"$core/attrib/block_size"
  # Offers UNMAP where the backing can deallocate by zeroing.
  [ "$2" = ram ] || echo 1 >"$core/attrib/emulate_tpu"
  mkdir "$core/alua/second"
  echo 2 >"$core/alua/second/tg_pt_gp_id"
  for group in 1 2; do
    mkdir -p "$LIO/iscsi/$iqn/tpgt_$group/np/$LIO_ADDRESS:$((3259 + group))" \
      "$LIO/iscsi/$iqn/tpgt_$group/lun/lun_0" || fail "no portal group $group"
    ln -s "$core" "$LIO/iscsi/$iqn/tpgt_$group/lun/lun_0/disk"
    (
      cd "$LIO/iscsi/$iqn/tpgt_$group/attrib" || exit
      echo 0 >authentication
      echo 1 >generate_node_acls
      echo 1 >cache_dynamic_acls
      echo 0 >demo_mode_write_protect
    )
  done
  echo second >"$LIO/iscsi/$iqn/tpgt_2/lun/lun_0/alua_tg_pt_gp"
  for group in 1 2; do echo 1 >"$LIO/iscsi/$iqn/tpgt_$group/enable" || fail "portal group $group"; done
}

# lio_core IQN file|ram|device: where configfs has the disk.
lio_core() {
  case $2 in
    ram) echo "$LIO/core/rd_mcp_0/${1##*:}" ;;
    file) echo "$LIO/core/fileio_0/${1##*:}" ;;
    device) echo "$LIO/core/iblock_0/${1##*:}" ;;
  esac
}

# lio_remove IQN file|ram|device: removes what lio_serve created.
lio_remove() {
  local iqn=$1 name=${1##*:} core group loop
  core=$(lio_core "$iqn" "$2")
  for group in 1 2; do
    echo 0 >"$LIO/iscsi/$iqn/tpgt_$group/enable"
    rm "$LIO/iscsi/$iqn/tpgt_$group/lun/lun_0/disk"
    rmdir "$LIO/iscsi/$iqn/tpgt_$group/lun/lun_0" "$LIO/iscsi/$iqn/tpgt_$group"/np/* \
      "$LIO/iscsi/$iqn/tpgt_$group"
  done
  rmdir "$LIO/iscsi/$iqn" "$core/alua/second" "$core" || fail "$iqn does not go"
  [ "$2" != device ] || losetup -d "$(losetup -n -O NAME -j "/tmp/$name.img")"
  rm -f "/tmp/$name.img"
}

# lio_set IQN KEY VALUE: an operational parameter of RFC 7143 13, for sessions that begin from now on.
lio_set() {
  local group
  for group in 1 2; do
    echo "$3" >"$LIO/iscsi/$1/tpgt_$group/param/$2" || fail "no $2=$3"
  done
}

lio_commands() { # lio_commands IQN GROUP: how many came through a portal group
  cat "$LIO/iscsi/$1/tpgt_$2/lun/lun_0/statistics/scsi_tgt_port/in_cmds"
}

lio_aptpl() { cat "$(lio_core "$1" "$2")/pr/res_aptpl_active"; } # lio_aptpl IQN KIND

# lio_state IQN KIND GROUP STATE: the access state (SPC-4 6.37) of the target port group: 0 active/optimized, 1
# active/non-optimized, 2 standby, 3 unavailable.
lio_state() {
  local group=default_tg_pt_gp
  [ "$3" = 1 ] || group=second
  echo "$4" >"$(lio_core "$1" "$2")/alua/$group/alua_access_state" || fail "no state $4"
}
