//! Ioctls: inode flags in two forms and the generation, of chattr(1) and lsattr(1); trimming, of fstrim(8); the
//! volume's label, of e2label(8).

#![expect(clippy::host_endian_bytes, reason = "arguments of ioctls are in the machine's byte order")]

use moafs_fuse::Errno;

use crate::convert;

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC32_GETFLAGS: u32 = 0x8004_6601;
const FS_IOC32_SETFLAGS: u32 = 0x4004_6602;
const FS_IOC_GETVERSION: u32 = 0x8008_7601;
const FS_IOC32_GETVERSION: u32 = 0x8004_7601;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

const FITRIM: u32 = 0xc018_5879;
const FS_IOC_GETFSLABEL: u32 = 0x8100_9431;
const FS_IOC_SETFSLABEL: u32 = 0x4100_9432;

/// Length of `struct fsxattr`: flags, extent-size hint, extents, project, copy-on-write hint, padding.
const FSXATTR_LEN: usize = 28;
/// Length of a label, with the zero behind it.
const FSLABEL_LEN: usize = 256;

/// A decoded ioctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Get the inode flags.
    GetFlags,
    /// Set inode flags to these.
    SetFlags(u32),
    /// Get the inode flags as `struct fsxattr`.
    GetXattr,
    /// Set the inode flags that `struct fsxattr` can express to these.
    SetXattr(u32),
    /// Get the inode's generation.
    GetVersion,
    /// Get the volume's label.
    GetLabel,
    /// Tell the device about free blocks.
    Trim(Trim),
}

/// `struct fstrim_range`, in bytes of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trim {
    /// The first byte.
    pub(crate) start: u64,
    /// Length of the range; in the reply the number of bytes that were free.
    pub(crate) len: u64,
    /// Length of the shortest free run that counts.
    pub(crate) min: u64,
}

impl Command {
    /// Decodes a command and its argument.
    pub(crate) fn parse(cmd: u32, input: &[u8]) -> Result<Command, Errno> {
        match cmd {
            FS_IOC_GETFLAGS | FS_IOC32_GETFLAGS => Ok(Command::GetFlags),
            FS_IOC_SETFLAGS | FS_IOC32_SETFLAGS => Ok(Command::SetFlags(word(input, 0)?)),
            FS_IOC_GETVERSION | FS_IOC32_GETVERSION => Ok(Command::GetVersion),
            FS_IOC_FSGETXATTR => Ok(Command::GetXattr),
            FS_IOC_FSSETXATTR => set_xattr(input),
            FS_IOC_GETFSLABEL => Ok(Command::GetLabel),
            // After ENOTTY tune2fs(8) would write to the superblock itself, which this mount writes anew.
            FS_IOC_SETFSLABEL => Err(Errno::EOPNOTSUPP),
            FITRIM => {
                let [start, len, min] = [0, 1, 2].map(|index| long(input, index));
                Ok(Command::Trim(Trim { start: start?, len: len?, min: min? }))
            }
            _ => Err(Errno::ENOTTY),
        }
    }
}

/// Decodes `struct fsxattr`. No format stores its hints and project numbers: only zero can be set.
fn set_xattr(input: &[u8]) -> Result<Command, Errno> {
    let flags = convert::flags_of_xflags(word(input, 0)?).ok_or(Errno::EOPNOTSUPP)?;
    let (extent_size, project, cow_size) = (word(input, 1)?, word(input, 3)?, word(input, 4)?);
    if (extent_size, project, cow_size) != (0, 0, 0) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(Command::SetXattr(flags))
}

fn word(input: &[u8], index: usize) -> Result<u32, Errno> {
    let bytes = input.get(index * 4..index * 4 + 4).ok_or(Errno::EINVAL)?;
    Ok(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

fn long(input: &[u8], index: usize) -> Result<u64, Errno> {
    let bytes = input.get(index * 8..index * 8 + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u64::from_ne_bytes).ok_or(Errno::EINVAL)
}

/// Writes a `struct fstrim_range` to `out`.
pub(crate) fn put_trim(trim: Trim, out: &mut [u8]) -> Result<usize, Errno> {
    let words = [trim.start, trim.len, trim.min].map(u64::to_ne_bytes);
    let bytes = words.as_flattened();
    out.get_mut(..bytes.len()).ok_or(Errno::EINVAL)?.copy_from_slice(bytes);
    Ok(bytes.len())
}

/// Writes a word to `out`. The command's number says 8 bytes, but callers have room for 4: no more may be written.
pub(crate) fn put_word(word: u32, out: &mut [u8]) -> Result<usize, Errno> {
    let bytes = word.to_ne_bytes();
    out.get_mut(..bytes.len()).ok_or(Errno::EINVAL)?.copy_from_slice(&bytes);
    Ok(bytes.len())
}

/// Writes a `struct fsxattr` to `out`.
pub(crate) fn put_xattr(flags: u32, out: &mut [u8]) -> Result<usize, Errno> {
    let room = out.get_mut(..FSXATTR_LEN).ok_or(Errno::EINVAL)?;
    room.fill(0);
    room[..4].copy_from_slice(&convert::xflags(flags).to_ne_bytes());
    Ok(FSXATTR_LEN)
}

/// Writes a label to `out`: as much of it as there is room for before a zero.
pub(crate) fn put_label(label: &str, out: &mut [u8]) -> Result<usize, Errno> {
    let room = out.get_mut(..FSLABEL_LEN).ok_or(Errno::EINVAL)?;
    room.fill(0);
    let most = label.len().min(FSLABEL_LEN - 1);
    let len = (0..=most).rev().find(|at| label.is_char_boundary(*at)).unwrap_or(0);
    room[..len].copy_from_slice(&label.as_bytes()[..len]);
    Ok(FSLABEL_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::{FS_APPEND_FL, FS_IMMUTABLE_FL};

    #[test]
    fn flags_go_both_ways_in_both_forms() {
        let mut out = [0xff; 8];
        assert_eq!(put_word(FS_APPEND_FL, &mut out), Ok(4));
        assert_eq!(out[4..], [0xff; 4], "the caller's variable has 4 bytes");
        assert_eq!(Command::parse(FS_IOC_SETFLAGS, &out), Ok(Command::SetFlags(FS_APPEND_FL)));
        let mut out = [0xff; FSXATTR_LEN];
        assert_eq!(put_xattr(FS_IMMUTABLE_FL, &mut out), Ok(FSXATTR_LEN));
        assert_eq!(Command::parse(FS_IOC_FSSETXATTR, &out), Ok(Command::SetXattr(FS_IMMUTABLE_FL)));
    }

    #[test]
    fn short_arguments_and_unknown_commands_are_refused() {
        assert_eq!(Command::parse(FS_IOC_SETFLAGS, &[0; 3]), Err(Errno::EINVAL));
        assert_eq!(Command::parse(FS_IOC_FSSETXATTR, &[0; 8]), Err(Errno::EINVAL));
        assert_eq!(Command::parse(0xdead_beef, &[]), Err(Errno::ENOTTY));
        assert_eq!(put_word(1, &mut [0; 2]), Err(Errno::EINVAL));
    }

    #[test]
    fn a_label_is_told_and_ends_with_a_zero_but_cannot_be_set() {
        let mut out = [0xff; FSLABEL_LEN];
        assert_eq!(put_label("disk", &mut out), Ok(FSLABEL_LEN));
        assert_eq!((&out[..4], out[4..].iter().max()), (&b"disk"[..], Some(&0)));
        // Two bytes each: the last one that fits ends before the zero.
        assert_eq!(put_label(&"é".repeat(300), &mut out), Ok(FSLABEL_LEN));
        assert_eq!(out[..254], "é".repeat(127).into_bytes()[..]);
        assert_eq!(out[254..], [0, 0]);
        assert_eq!(put_label("disk", &mut [0; 4]), Err(Errno::EINVAL));
        assert_eq!(Command::parse(FS_IOC_SETFSLABEL, &out), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn a_range_to_trim_goes_both_ways() {
        let mut out = [0xff; 24];
        let trim = Trim { start: 1, len: u64::MAX, min: 4096 };
        assert_eq!(put_trim(trim, &mut out), Ok(24));
        assert_eq!(Command::parse(FITRIM, &out), Ok(Command::Trim(trim)));
        assert_eq!(Command::parse(FITRIM, &out[..23]), Err(Errno::EINVAL));
    }

    #[test]
    fn a_project_number_cannot_be_set() {
        let mut input = [0; FSXATTR_LEN];
        input[12] = 7;
        assert_eq!(Command::parse(FS_IOC_FSSETXATTR, &input), Err(Errno::EOPNOTSUPP));
    }
}
