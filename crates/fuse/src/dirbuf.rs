//! Directory listings, packed straight into the reply buffer.

use std::mem::size_of;

use crate::abi::{self, Dirent, EntryOut};
use crate::errno::Errno;
use crate::types::Entry;

/// Longest name that the protocol can list, bytes.
const NAME_LEN_MAX: usize = 255;

/// Returns the type of a directory entry, as in `<dirent.h>`, from a mode's `S_IFMT` bits.
const fn kind_of_mode(mode: u32) -> u32 {
    (mode & libc::S_IFMT) >> 12
}

/// Returns the length of an entry in bytes: head and name, padded to 8 bytes.
const fn dirent_len(name_len: usize) -> usize {
    (size_of::<Dirent>() + name_len).next_multiple_of(8)
}

/// Packs records one after another and knows when the buffer is full.
struct Packer<'a> {
    out: &'a mut [u8],
    used: usize,
    full: bool,
    bad_name: bool,
}

impl Packer<'_> {
    /// Appends `head` and a directory entry; returns false if they do not fit.
    fn add(&mut self, head: &[u8], dirent: Dirent, name: &[u8]) -> bool {
        if name.is_empty() || name.len() > NAME_LEN_MAX || name.iter().any(|&byte| byte == 0 || byte == b'/') {
            self.bad_name = true;
            return false;
        }
        let len = head.len() + dirent_len(name.len());
        if self.full || self.out.len() - self.used < len {
            self.full = true;
            return false;
        }
        let record = &mut self.out[self.used..self.used + len];
        let (head_out, rest) = record.split_at_mut(head.len());
        let (dirent_out, name_out) = rest.split_at_mut(size_of::<Dirent>());
        head_out.copy_from_slice(head);
        dirent_out.copy_from_slice(abi::bytes_of(&dirent));
        name_out[..name.len()].copy_from_slice(name);
        name_out[name.len()..].fill(0);
        self.used += len;
        true
    }

    /// Returns the bytes packed. An empty listing means the end of the directory, so a buffer too small for one entry
    /// is an error. What was packed counts: the kernel has to learn of its look-ups, and the next call meets the error.
    fn finish(self) -> Result<usize, Errno> {
        match self.used {
            0 if self.bad_name => Err(Errno::EIO),
            0 if self.full => Err(Errno::EINVAL),
            used => Ok(used),
        }
    }
}

/// Sink of [`readdir`](crate::FileSystem::readdir).
pub struct DirBuf<'a>(Packer<'a>);

impl<'a> DirBuf<'a> {
    /// Creates a sink that packs entries into `out`.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self(Packer { out, used: 0, full: false, bad_name: false })
    }

    /// Returns true before the first entry.
    pub fn is_empty(&self) -> bool {
        self.0.used == 0
    }

    /// Returns the number of bytes packed.
    ///
    /// # Errors
    /// If there are none: `EINVAL` if the buffer is too small for one entry, `EIO` if the first has a bad name.
    pub fn finish(self) -> Result<usize, Errno> {
        self.0.finish()
    }

    /// Adds an entry: inode number (not zero), the offset that resumes *after* it (not zero), file type taken from
    /// `mode`, and name. Returns false if the buffer is full and the entry was not taken. A name that is empty, longer
    /// than 255 bytes or holds NUL or `/` is not taken either, and fails a listing that it begins with `EIO`.
    #[must_use]
    pub fn add(&mut self, ino: u64, next_offset: u64, mode: u32, name: &[u8]) -> bool {
        let dirent = Dirent { ino, off: next_offset, namelen: name.len() as u32, kind: kind_of_mode(mode) };
        self.0.add(&[], dirent, name)
    }
}

/// Sink of [`readdirplus`](crate::FileSystem::readdirplus).
pub struct DirPlusBuf<'a>(Packer<'a>);

impl<'a> DirPlusBuf<'a> {
    /// Creates a sink that packs entries into `out`.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self(Packer { out, used: 0, full: false, bad_name: false })
    }

    /// Returns true before the first entry.
    pub fn is_empty(&self) -> bool {
        self.0.used == 0
    }

    /// Returns the number of bytes packed.
    ///
    /// # Errors
    /// If there are none: `EINVAL` if the buffer is too small for one entry, `EIO` if the first has a bad name.
    pub fn finish(self) -> Result<usize, Errno> {
        self.0.finish()
    }

    /// Returns true if an entry with a name of `name_len` bytes still fits. Ask before counting a lookup.
    pub fn fits(&self, name_len: usize) -> bool {
        !self.0.full && self.0.out.len() - self.0.used >= size_of::<EntryOut>() + dirent_len(name_len)
    }

    /// Adds an entry with its attributes; a lookup of its node, if `true` is returned. Inode number and type are taken
    /// from the attributes.
    #[must_use]
    pub fn add(&mut self, entry: &Entry, next_offset: u64, name: &[u8]) -> bool {
        let head = EntryOut::from(entry);
        let dirent = Dirent {
            ino: entry.attr.ino,
            off: next_offset,
            namelen: name.len() as u32,
            kind: kind_of_mode(entry.attr.mode),
        };
        self.0.add(abi::bytes_of(&head), dirent, name)
    }

    /// Adds an entry without attributes, which is no lookup: for `.` and `..`, and where reading the node failed.
    #[must_use]
    pub fn add_name(&mut self, ino: u64, next_offset: u64, mode: u32, name: &[u8]) -> bool {
        let dirent = Dirent { ino, off: next_offset, namelen: name.len() as u32, kind: kind_of_mode(mode) };
        self.0.add(abi::bytes_of(&EntryOut::default()), dirent, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_the_last_one_that_fits_is_kept() {
        let mut out = [0xaa; 24 + 8 + 24 + 16];
        let mut buf = DirBuf::new(&mut out);
        assert!(buf.add(7, 1, libc::S_IFREG, b"a"));
        assert!(buf.add(8, 2, libc::S_IFDIR, b"ninebytes"));
        assert!(!buf.add(9, 3, libc::S_IFREG, b"x"));
        assert_eq!(buf.finish(), Ok(24 + 8 + 24 + 16));
        assert_eq!(&out[24..32], b"a\0\0\0\0\0\0\0");
        assert_eq!(abi::parse::<Dirent>(&out[32..]).map(|d| (d.ino, d.off, d.namelen, d.kind)), Some((8, 2, 9, 4)));
    }

    #[test]
    fn after_a_full_buffer_no_shorter_name_slips_in() {
        let mut out = [0; 32];
        let mut buf = DirBuf::new(&mut out);
        assert!(!buf.add(1, 1, libc::S_IFREG, b"too long for the buffer"));
        assert!(!buf.add(1, 2, libc::S_IFREG, b"a"));
        assert_eq!(buf.finish(), Err(Errno::EINVAL));
    }

    #[test]
    fn a_name_no_directory_can_hold_ends_the_listing_and_fails_the_next() {
        let long = [b'x'; 256];
        for name in [&b""[..], b"a/b", b"a\0b", &long] {
            let mut out = [0; 4096];
            let mut buf = DirBuf::new(&mut out);
            assert!(buf.add(1, 1, libc::S_IFREG, b"fine"));
            assert!(!buf.add(1, 2, libc::S_IFREG, name));
            assert_eq!(buf.finish(), Ok(32), "the entry before it");
            let mut buf = DirBuf::new(&mut out);
            assert!(!buf.add(1, 2, libc::S_IFREG, name));
            assert_eq!(buf.finish(), Err(Errno::EIO));
        }
    }

    #[test]
    fn fits_agrees_with_add() {
        let mut out = [0; 128 + 32 + 100];
        let mut buf = DirPlusBuf::new(&mut out);
        assert!(buf.fits(8) && buf.add_name(1, 1, libc::S_IFDIR, b".."));
        assert!(!buf.fits(1) && !buf.add_name(1, 2, libc::S_IFDIR, b"x"));
    }
}
