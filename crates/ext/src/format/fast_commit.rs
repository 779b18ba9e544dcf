//! The format of fast commits: what a file system has changed since its last transaction, file by file.
//!
//! They lie in an area of their own behind the ring of the log, as packed records {tag, length, value}. A *tail* ends a
//! commit, and its block: the next commit begins in the next one. Its checksum covers all records since the tail
//! before. Commits count up to the first tail that is wrong or missing. The area begins with a *head*, which names the
//! transaction that the commits would have become: commits of an older one are what is left of it.
//!
//! Unlike the rest of the journal, these records are little-endian. `docs/formats/ext4.md`, section 8.1.

use super::checksum::Crc32c;
use super::extent::Extent;
use super::inode::GOOD_OLD_BYTES;
use super::{BlockNo, Damage, InodeNo, Place, Structure, u16_at, u32_at};

/// Bytes of a record's tag and length.
const HEADER_BYTES: usize = 4;
/// An `ee_len` above it means an unwritten extent of as many blocks less.
const WRITTEN_MAX: u16 = 32768;
/// The most bytes of records that are replayed: they are in memory together.
const RECORD_BYTES_MAX: usize = 64 << 20;

mod tag {
    pub(super) const ADD_RANGE: u16 = 1;
    pub(super) const DEL_RANGE: u16 = 2;
    pub(super) const CREAT: u16 = 3;
    pub(super) const LINK: u16 = 4;
    pub(super) const UNLINK: u16 = 5;
    pub(super) const INODE: u16 = 6;
    pub(super) const PAD: u16 = 7;
    pub(super) const TAIL: u16 = 8;
    pub(super) const HEAD: u16 = 9;
}

/// A change that a fast commit records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// File blocks have a place.
    AddRange {
        /// The file.
        ino: InodeNo,
        /// The file blocks and their place.
        extent: Extent,
    },
    /// File blocks have no place any more.
    DelRange {
        /// The file.
        ino: InodeNo,
        /// The first file block.
        lbn: u32,
        /// Number of file blocks.
        len: u32,
    },
    /// A file has a name.
    Name {
        /// The name and the numbers of directory and file.
        name: NameChange,
        /// True for the first name of a new file.
        is_new: bool,
    },
    /// A file has lost a name.
    Unlink(NameChange),
    /// An inode has these contents: a slot without the attributes in it.
    Inode {
        /// The inode.
        ino: InodeNo,
        /// The bytes of its slot.
        slot: Vec<u8>,
    },
}

/// A name in a directory, and the inode that it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameChange {
    /// The directory.
    pub parent: InodeNo,
    /// The inode.
    pub ino: InodeNo,
    /// The name.
    pub name: Vec<u8>,
}

/// Reads the area block by block.
#[derive(Debug)]
pub struct Reader {
    sequence: u32,
    sum: Crc32c,
    is_first: bool,
    /// The features that the head names: they count if its commit does.
    features: u32,
    /// Records since the last tail.
    open: Vec<Record>,
    open_bytes: usize,
    /// Records of commits that are complete.
    records: Vec<Record>,
    bytes: usize,
}

/// A record as its bytes say.
enum Parsed {
    Change(Record),
    Pad,
    Head { features: u32, sequence: u32 },
    Tail { sequence: u32, sum: u32 },
}

impl Reader {
    /// Begins to read the fast commits that go on from the transactions before `sequence`.
    pub fn new(sequence: u32) -> Reader {
        Reader {
            sequence,
            sum: Crc32c(0),
            is_first: true,
            features: 0,
            open: Vec::new(),
            open_bytes: 0,
            records: Vec::new(),
            bytes: 0,
        }
    }

    /// Takes the next block of the area, which is block `at` of the journal. Returns false if the commits end here.
    ///
    /// # Errors
    /// Commits of an unknown kind, or more of them than fit into memory.
    pub fn block(&mut self, block: &[u8], at: u32) -> Result<bool, Damage> {
        let place = Place::of(Structure::LogBlock(at));
        let mut offset = 0;
        while let Some((parsed, end)) = parse(block, offset) {
            let is_first = std::mem::replace(&mut self.is_first, false);
            match parsed {
                Parsed::Head { sequence, .. } if !is_first || sequence != self.sequence => return Ok(false),
                _ if is_first && !matches!(parsed, Parsed::Head { .. }) => return Ok(false),
                Parsed::Tail { sequence, sum } => {
                    // The tail's own checksum is not covered.
                    let covered = self.sum.bytes(&block[offset..offset + HEADER_BYTES + 4]);
                    if sequence != self.sequence || sum != covered.0 {
                        return Ok(false);
                    }
                    if self.features != 0 {
                        let problem = format!("the fast commits have the unknown features {:#x}", self.features);
                        return Err(place.damage(problem));
                    }
                    self.end_commit();
                    return Ok(true);
                }
                Parsed::Change(record) => {
                    self.open_bytes += end - offset;
                    self.open.push(record);
                }
                Parsed::Head { features, .. } => self.features = features,
                Parsed::Pad => {}
            }
            if self.bytes + self.open_bytes > RECORD_BYTES_MAX {
                return Err(place.damage(format!("the fast commits have more than {RECORD_BYTES_MAX} bytes")));
            }
            self.sum = self.sum.bytes(&block[offset..end]);
            offset = end;
        }
        // A commit goes on in the next block if its records fill this one.
        Ok(offset > 0 && offset + HEADER_BYTES > block.len())
    }

    fn end_commit(&mut self) {
        self.records.append(&mut self.open);
        self.bytes += std::mem::take(&mut self.open_bytes);
        self.sum = Crc32c(0);
    }

    /// Returns the records of the commits that are complete, in their order.
    pub fn finish(self) -> Vec<Record> {
        self.records
    }
}

/// Returns true if the area begins with a fast commit that goes on from the transactions before `sequence`.
pub fn begins(block: &[u8], sequence: u32) -> bool {
    matches!(parse(block, 0), Some((Parsed::Head { sequence: found, .. }, _)) if found == sequence)
}

/// Returns the record at `offset` and the byte behind it; `None` if there is none.
fn parse(block: &[u8], offset: usize) -> Option<(Parsed, usize)> {
    let header = block.get(offset..offset + HEADER_BYTES)?;
    let start = offset + HEADER_BYTES;
    let end = start + usize::from(u16_at(header, 2));
    let value = block.get(start..end)?;
    let ino = |at: usize| InodeNo(u32_at(value, at));
    let named = || (value.len() > 8).then(|| NameChange { parent: ino(0), ino: ino(4), name: value[8..].to_vec() });
    let parsed = match u16_at(header, 0) {
        tag::ADD_RANGE if value.len() == 16 => {
            Parsed::Change(Record::AddRange { ino: ino(0), extent: extent(&value[4..])? })
        }
        tag::DEL_RANGE if value.len() == 12 => {
            Parsed::Change(Record::DelRange { ino: ino(0), lbn: u32_at(value, 4), len: u32_at(value, 8) })
        }
        tag::CREAT => Parsed::Change(Record::Name { name: named()?, is_new: true }),
        tag::LINK => Parsed::Change(Record::Name { name: named()?, is_new: false }),
        tag::UNLINK => Parsed::Change(Record::Unlink(named()?)),
        tag::INODE if value.len() >= 4 + GOOD_OLD_BYTES => {
            Parsed::Change(Record::Inode { ino: ino(0), slot: value[4..].to_vec() })
        }
        tag::PAD => Parsed::Pad,
        tag::TAIL if value.len() >= 8 => Parsed::Tail { sequence: u32_at(value, 0), sum: u32_at(value, 4) },
        tag::HEAD if value.len() == 8 => Parsed::Head { features: u32_at(value, 0), sequence: u32_at(value, 4) },
        _ => return None,
    };
    Some((parsed, end))
}

/// Decodes an extent as a node of a tree has it; `None` if it is empty.
fn extent(bytes: &[u8]) -> Option<Extent> {
    let stored = u16_at(bytes, 4);
    let unwritten = stored > WRITTEN_MAX;
    let len = if unwritten { stored - WRITTEN_MAX } else { stored };
    let start = BlockNo(u64::from(u16_at(bytes, 6)) << 32 | u64::from(u32_at(bytes, 8)));
    (len > 0).then(|| Extent { lbn: u32_at(bytes, 0), len, start, unwritten })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A fast commit of the kernel (6.18): a second name for a file, whose inode has changed.
    const HEAD: [u8; 12] = [9, 0, 8, 0, 0, 0, 0, 0, 6, 0, 0, 0];
    const LINK: [u8; 13] = [4, 0, 9, 0, 2, 0, 0, 0, 12, 0, 0, 0, b'd'];
    /// The words of the inode's slot that are not zero.
    const SLOT: [(usize, u32); 14] = [
        (0x00, 0x81A4),
        (0x04, 8),
        (0x08, 0x6B08_4508),
        (0x0C, 0x6B08_4509),
        (0x10, 0x6B08_4509),
        (0x18, 0x2_0000),
        (0x1C, 2),
        (0x20, 0x8_0000),
        (0x24, 2),
        (0x28, 0x1_F30A),
        (0x2C, 4),
        (0x38, 1),
        (0x3C, 0x3C01),
        (0x64, 0x7561_FEBF),
    ];
    const TAIL: [u8; 12] = [8, 0, 0x5B, 3, 6, 0, 0, 0, 0x15, 0x34, 0x95, 0x21];

    fn kernels() -> Vec<u8> {
        let mut inode = [&[6, 0, 132, 0, 12, 0, 0, 0][..], &[0; 128]].concat();
        SLOT.iter().for_each(|(at, word)| crate::format::put_u32(&mut inode, 8 + at, *word));
        let mut block = [&HEAD[..], &LINK, &inode, &TAIL].concat();
        block.resize(1024, 0);
        block
    }

    fn read(blocks: &[Vec<u8>], sequence: u32) -> Vec<Record> {
        let mut reader = Reader::new(sequence);
        let _ = blocks
            .iter()
            .zip(1..)
            .try_for_each(|(block, at)| reader.block(block, at).ok().filter(|more| *more).map(drop));
        reader.finish()
    }

    #[test]
    fn a_commit_of_the_kernel_is_read() {
        let found = read(&[kernels()], 6);
        let name = NameChange { parent: InodeNo(2), ino: InodeNo(12), name: b"d".to_vec() };
        assert_eq!(found[0], Record::Name { name, is_new: false });
        assert!(matches!(&found[1], Record::Inode { ino: InodeNo(12), slot } if slot.len() == 128 && slot[26] == 2));
        assert_eq!(found.len(), 2);
        assert!(begins(&kernels(), 6) && !begins(&kernels(), 7));
        assert_eq!(read(&[kernels()], 5), []);
    }

    #[test]
    fn commits_count_up_to_the_first_wrong_tail() {
        for at in 0..160 {
            let mut block = kernels();
            block[at] ^= 0x10;
            assert_eq!(read(&[block], 6), [], "byte {at} is another one");
        }
        // The next commit has no tail.
        let open = [&LINK[..], &[0; 1024 - LINK.len()]].concat();
        assert_eq!(read(&[kernels(), open], 6).len(), 2);
    }

    #[test]
    fn a_commit_may_go_on_in_the_next_block() {
        let pad = 1024 - HEAD.len() - LINK.len();
        let padding = [&[7, 0, (pad - 4) as u8, ((pad - 4) >> 8) as u8][..], &vec![0; pad - 4]].concat();
        let first = [&HEAD[..], &LINK, &padding].concat();
        let mut tail = TAIL;
        let sum = Crc32c(0).bytes(&first).bytes(&LINK).bytes(&tail[..8]).0;
        tail[8..].copy_from_slice(&sum.to_le_bytes());
        let mut second = [&LINK[..], &tail].concat();
        second.resize(1024, 0);
        // The length of a tail is that of the rest of its block, as far as that is there.
        assert_eq!(read(&[first.clone(), second.clone()], 6).len(), 2);
        assert_eq!(read(&[first, vec![0; 1024]], 6), []);
    }

    proptest! {
        #[test]
        fn hostile_blocks_never_panic(bytes in prop::collection::vec(any::<u8>(), 1000), tags in prop::collection::vec(0u8..11, 40)) {
            let mut block = [&HEAD[..], &bytes].concat();
            block.resize(1024, 0);
            for (step, tag) in tags.into_iter().enumerate() {
                block[12 + 25 * step..][..4].copy_from_slice(&[tag, 0, 21, 0]);
            }
            read(&[block.clone(), block], 6);
        }
    }
}
