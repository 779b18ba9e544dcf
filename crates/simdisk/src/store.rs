//! The disk's bytes: a sparse file in memory, or one the user names. Access to them costs no
//! modelled time.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, MemfdFlags};

/// The bytes of a disk.
#[derive(Debug)]
pub(crate) struct Store {
    file: File,
    bytes: u64,
}

impl Store {
    /// Opens the store: `bytes` of zeros in memory (not in the page cache of some host disk, whose
    /// dirty pages would count against the limit of the file systems under test), or an image file:
    /// extended to `bytes` if it is shorter, and kept.
    pub(crate) fn open(image: Option<&Path>, bytes: u64) -> io::Result<Store> {
        let file = match image {
            Some(path) => OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?,
            None => File::from(rustix::fs::memfd_create(c"simdisk", MemfdFlags::CLOEXEC)?),
        };
        if file.metadata()?.len() < bytes {
            file.set_len(bytes)?;
        }
        Ok(Store { file, bytes })
    }

    /// Returns the size of the disk in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `out` from byte `offset` on and returns the bytes read: fewer than asked for only at
    /// the end of the disk.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let len = self.within(offset, out.len());
        self.file.read_exact_at(&mut out[..len], offset)?;
        Ok(len)
    }

    /// Writes the part of `data` that lies within the disk and returns its length in bytes. Zeros
    /// take no space.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        let len = self.within(offset, data.len());
        let data = &data[..len];
        if data.iter().all(|&byte| byte == 0) {
            self.clear(offset, len as u64)?;
        } else {
            self.file.write_all_at(data, offset)?;
        }
        Ok(len)
    }

    /// Makes a range read as zeros.
    pub(crate) fn clear(&self, offset: u64, len: u64) -> io::Result<()> {
        let len = len.min(self.bytes.saturating_sub(offset));
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset, len)?)
    }

    fn within(&self, offset: u64, len: usize) -> usize {
        let left = self.bytes.saturating_sub(offset);
        usize::try_from(left).map_or(len, |left| len.min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_the_end_cuts() {
        let store = Store::open(None, 8192).unwrap();
        assert_eq!(store.write(8000, &[7; 500]).unwrap(), 192);
        let mut out = [1; 400];
        assert_eq!(store.read(7900, &mut out).unwrap(), 292);
        assert!(out[..100].iter().all(|&byte| byte == 0) && out[100..292].iter().all(|&byte| byte == 7));
        assert_eq!(store.read(9000, &mut out).unwrap(), 0);
    }

    #[test]
    fn zeros_and_cleared_ranges_read_as_zeros() {
        let store = Store::open(None, 16384).unwrap();
        store.write(0, &[7; 16384]).unwrap();
        store.write(4096, &[0; 4096]).unwrap();
        store.clear(12000, u64::MAX - 12000).unwrap();
        let mut out = vec![1; 16384];
        store.read(0, &mut out).unwrap();
        let zero = |range: Range| out[range].iter().all(|&byte| byte == 0);
        assert!(zero(4096..8192) && zero(12000..16384) && out[8192] == 7 && out[11999] == 7);
    }

    type Range = std::ops::Range<usize>;

    #[test]
    fn an_image_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        Store::open(Some(&path), 4096).unwrap().write(0, b"kept").unwrap();
        let mut out = [0; 4];
        Store::open(Some(&path), 4096).unwrap().read(0, &mut out).unwrap();
        assert_eq!(&out, b"kept");
    }
}
