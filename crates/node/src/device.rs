//! What identifies a block device wherever it is plugged in: the identifier that its driver
//! provides in sysfs.

use std::{fs, path::Path};

/// The block devices in sysfs, by their numbers.
pub(crate) const DEVICES: &str = "/sys/dev/block";

/// The name of device `major:minor` that survives restarts and moves to other machines, if it has
/// one. `devices` is [`DEVICES`].
pub(crate) fn world_wide_name(devices: &Path, major: u32, minor: u32) -> Option<String> {
    let device = devices.join(format!("{major}:{minor}"));
    let read = |name: &str| {
        let text = fs::read_to_string(device.join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    // The directory of a partition lies in that of its disk.
    let (prefix, suffix) = match read("partition") {
        Some(number) => ("../", format!(" partition {number}")),
        None => ("", String::new()),
    };
    // SCSI has it below `device`, NVMe next to it; device mapper and md have their own.
    let names = ["device/wwid", "wwid", "dm/uuid", "md/uuid"];
    let found = names
        .iter()
        .find_map(|name| read(&format!("{prefix}{name}")));
    found.map(|name| name + &suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_and_its_partition_have_names_of_their_own() {
        let devices = std::env::temp_dir().join(format!("sanstone-sysfs-{}", std::process::id()));
        let file = |path: &str, text: &str| {
            let path = devices.join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("room");
            fs::write(path, text).expect("room");
        };
        file("sda/device/wwid", "naa.5000c500a1b2c3d4\n");
        file("sda/sda2/partition", "2\n");
        file("dm-0/dm/uuid", "LVM-x7\n");
        file("vda/size", "8\n");
        for (number, target) in [
            ("8:0", "sda"),
            ("8:2", "sda/sda2"),
            ("253:0", "dm-0"),
            ("254:0", "vda"),
        ] {
            std::os::unix::fs::symlink(devices.join(target), devices.join(number)).expect("room");
        }
        let name = |major, minor| world_wide_name(&devices, major, minor);
        assert_eq!(name(8, 0).as_deref(), Some("naa.5000c500a1b2c3d4"));
        assert_eq!(
            name(8, 2).as_deref(),
            Some("naa.5000c500a1b2c3d4 partition 2")
        );
        assert_eq!(name(253, 0).as_deref(), Some("LVM-x7"));
        assert_eq!((name(254, 0), name(7, 0)), (None, None));
        fs::remove_dir_all(&devices).expect("a clean-up");
    }
}
