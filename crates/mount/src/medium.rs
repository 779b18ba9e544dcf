//! The kind of disk below a volume: with or without a head that moves.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Directory in which the kernel describes block devices, by their numbers.
const DEVICES: &str = "/sys/dev/block";

/// The kind of disk below a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// A rotating disk: the head has to move.
    Head,
    /// A disk without head, such as flash or memory: every address is as near as any other.
    NoHead,
    /// The host does not say: a file on a network, or in a file system on several devices.
    Unknown,
}

impl Medium {
    /// Returns the kind of the block device at `path`, or of the device that holds the file at `path`.
    pub fn of(path: &Path) -> Medium {
        let Ok(found) = fs::metadata(path) else { return Medium::Unknown };
        let number = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
        Medium::told(Path::new(DEVICES), (libc::major(number), libc::minor(number)))
    }

    fn told(devices: &Path, (major, minor): (u32, u32)) -> Medium {
        let device = devices.join(format!("{major}:{minor}"));
        // A partition has no queue; its disk's is one directory above.
        let queues = ["queue/rotational", "../queue/rotational"];
        let told = queues.into_iter().find_map(|queue| fs::read_to_string(device.join(queue)).ok());
        match told.as_deref().map(str::trim) {
            Some("1") => Medium::Head,
            Some("0") => Medium::NoHead,
            _ => Medium::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_partitions_and_what_nobody_knows_are_told_apart() {
        let devices = tempfile::tempdir().unwrap();
        let at = |name: &str| devices.path().join(name);
        for (disk, rotational) in [("8:0", "1\n"), ("179:0", "0\n"), ("7:0", "odd")] {
            fs::create_dir_all(at(disk).join("queue")).unwrap();
            fs::create_dir_all(at(disk).join("part")).unwrap();
            fs::write(at(disk).join("queue/rotational"), rotational).unwrap();
        }
        std::os::unix::fs::symlink(at("179:0").join("part"), at("179:1")).unwrap();
        std::os::unix::fs::symlink(at("8:0").join("part"), at("8:1")).unwrap();
        for (number, medium) in [
            ((8, 0), Medium::Head),
            ((8, 1), Medium::Head),
            ((179, 0), Medium::NoHead),
            ((179, 1), Medium::NoHead),
            ((7, 0), Medium::Unknown),
            ((0, 42), Medium::Unknown),
        ] {
            assert_eq!(Medium::told(devices.path(), number), medium, "{number:?}");
        }
        assert_eq!(Medium::of(&at("nothing here")), Medium::Unknown);
    }
}
