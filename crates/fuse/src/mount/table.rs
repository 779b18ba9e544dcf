//! The mount table of this process. It is read without asking any file system.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::options::{MountFlags, MountOptions};

const MOUNTINFO: &str = "/proc/self/mountinfo";

/// Major and minor number.
pub(super) type DeviceId = (u32, u32);

/// Returns the device number of the topmost mount at `target`, which must be an absolute path without symbolic links.
/// Read from the mount table: no file system is asked.
pub(super) fn device_mounted_at(target: &Path) -> io::Result<Option<DeviceId>> {
    let table = std::fs::read(MOUNTINFO)?;
    let mut mounts = table.split(|&byte| byte == b'\n').rev().filter_map(parse_mountinfo);
    Ok(mounts.find(|(at, _)| at == target).map(|(_, id)| id))
}

/// Returns the fields of the mount table that identify a mount, with spaces between them: device, root and mount point.
pub(super) fn fields_of(target: &Path, device: DeviceId) -> io::Result<Option<Vec<u8>>> {
    let table = std::fs::read(MOUNTINFO)?;
    let is_it = |line: &&[u8]| parse_mountinfo(line).is_some_and(|(at, id)| at == target && id == device);
    let line = table.split(|&byte| byte == b'\n').rev().find(is_it);
    Ok(line.map(|line| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').skip(2).take(3).collect();
        fields.join(&b' ')
    }))
}

/// Options of a mount that belong to its file system.
const OF_THE_FILE_SYSTEM: MountFlags =
    MountFlags::RDONLY.union(MountFlags::SYNCHRONOUS).union(MountFlags::DIRSYNC).union(MountFlags::LAZYTIME);

/// Returns the options of a mount that every file system knows: those of its place in the tree, and those of the file
/// system. `None` if the table does not have it.
pub(super) fn flags_of(target: &Path, device: DeviceId) -> io::Result<Option<MountFlags>> {
    let table = std::fs::read(MOUNTINFO)?;
    let is_it = |line: &&[u8]| parse_mountinfo(line).is_some_and(|(at, id)| at == target && id == device);
    Ok(table.split(|&byte| byte == b'\n').rev().find(is_it).map(parse_flags))
}

/// Parses the options of a line: those in the sixth field, and those of the file system in the last.
fn parse_flags(line: &[u8]) -> MountFlags {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let words = |field: Option<&&[u8]>| {
        let text = String::from_utf8_lossy(field.copied().unwrap_or_default()).into_owned();
        let mut options = MountOptions { flags: MountFlags::empty(), ..MountOptions::default() };
        // Words of the kernel that are no options of every mount are not meant.
        for word in text.split(',') {
            let _ = options.apply(word);
        }
        options.flags
    };
    words(fields.get(5)) | words(fields.last()) & OF_THE_FILE_SYSTEM
}

/// Parses mount point and device from a line: `id parent major:minor root mountpoint …`.
fn parse_mountinfo(line: &[u8]) -> Option<(PathBuf, DeviceId)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let path = unescape_octal(fields.nth(1)?);
    Some((PathBuf::from(OsString::from_vec(path)), (major.parse().ok()?, minor.parse().ok()?)))
}

/// Decodes a field of the mount table, which writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape_octal(mut text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    while let Some((&first, rest)) = text.split_first() {
        match rest {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] if first == b'\\' => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                text = tail;
            }
            _ => {
                plain.push(first);
                text = rest;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_read_with_escapes() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402\134x rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(parse_mountinfo(line), Some((PathBuf::from(r"/mnt 2\x"), (98, 0))));
        for bad in [&b""[..], b"36 35", b"36 35 98 / /mnt", b"36 35 a:b / /mnt"] {
            assert_eq!(parse_mountinfo(bad), None);
        }
        assert_eq!(unescape_octal(br"\04"), br"\04");
    }

    #[test]
    fn options_of_a_mount_are_those_of_its_place_and_of_its_file_system() {
        let flags = |place: &str, all: &str| {
            parse_flags(format!("36 35 98:0 / /mnt {place} master:1 - fuse.x x {all}").as_bytes())
        };
        assert_eq!(flags("rw,noatime,nosuid", "rw,user_id=0"), MountFlags::NOATIME | MountFlags::NOSUID);
        assert_eq!(flags("ro,relatime", "rw"), MountFlags::RDONLY | MountFlags::RELATIME);
        assert_eq!(flags("rw,relatime", "ro,user_id=0"), MountFlags::RDONLY | MountFlags::RELATIME);
        let synchronous = MountFlags::SYNCHRONOUS | MountFlags::DIRSYNC | MountFlags::LAZYTIME;
        assert_eq!(flags("rw", "rw,sync,dirsync,lazytime,noexec"), synchronous);
        assert_eq!(parse_flags(b"36 35"), MountFlags::empty());
    }
}
