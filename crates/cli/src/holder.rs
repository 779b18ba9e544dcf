//! The holder of an image that is in use: a mount of moafs, or another process.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use moafs_mount::mount_table;

use crate::output;

/// Names the holder of an image or device, and the way to wait for it.
pub(crate) fn words(image: &Path) -> String {
    let Ok(file) = image.canonicalize() else { return "try again later".to_owned() };
    let mounts = mount_table::mounts_of_image(&file);
    if let Some(entry) = mounts.first() {
        let target = output::path(&entry.target);
        let is_private = entry.target.metadata().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
        let way_out = if is_private {
            "only the user who mounted it may look (`-o allow_other` lets others); release it with"
        } else {
            "work there, or release it with"
        };
        return format!("it is mounted on {target}; {way_out} `moafs umount {target}`");
    }
    if let Some(target) = mount_table::mount_point_of(&file) {
        return format!("it is mounted on {}; unmount it there first", output::path(&target));
    }
    match process_of(&file) {
        Some((process, name)) => format!("{name} (process {process}) works on it; wait for that"),
        None => "another process works on it; wait for that".to_owned(),
    }
}

/// Returns number and name of a process that holds a lock on a file.
fn process_of(file: &Path) -> Option<(u32, String)> {
    let meta = file.metadata().ok()?;
    let id = format!("{:02x}:{:02x}:{}", libc::major(meta.dev()), libc::minor(meta.dev()), meta.ino());
    let process = lock_holder(&std::fs::read_to_string("/proc/locks").ok()?, &id)?;
    let words = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let mut words = words.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let program = words.next()?.rsplit(|byte| *byte == b'/').next().map(output::name)?;
    let command = words.next().filter(|word| word.iter().all(u8::is_ascii_lowercase)).map(output::name);
    Some((process, [Some(program), command].into_iter().flatten().collect::<Vec<_>>().join(" ")))
}

/// Returns the process of the first lock on the file `id` (`MAJOR:MINOR:INODE`) in the text of /proc/locks.
fn lock_holder(locks: &str, id: &str) -> Option<u32> {
    let fields = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Waiting locks have `->` behind their number, and are no holders.
    fields
        .filter(|fields| fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&id))
        .find_map(|fields| fields[4].parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 fe:00:12 0 EOF\n2: FLOCK  ADVISORY  WRITE 1234 fe:00:12 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 99 fe:00:13 0 EOF\n3: FLOCK  ADVISORY  READ 5 fe:00:1 0 EOF\n";
        assert_eq!(lock_holder(locks, "fe:00:12"), Some(1234));
        assert_eq!(lock_holder(locks, "fe:00:13"), None);
        assert_eq!(lock_holder(locks, "fe:00:2"), None);
        assert_eq!(lock_holder("", "fe:00:2"), None);
    }
}
