//! Checksums of metadata: what each one covers, what goes into it besides the bytes, and where it lies.
//!
//! A volume has one of three kinds ([`Checksums`]): none; CRC-16 of group descriptors only (uninit_bg); or CRC-32C of
//! all metadata (metadata_csum). The last one begins with a seed, which is the checksum of the volume's UUID, or is
//! stored in the superblock (metadata_csum_seed). [`Sealed`] names a structure that carries its own checksum together
//! with the numbers that go into it. The checksums of bitmaps lie in the group's descriptor instead:
//! [`Checksums::of_bitmap`].
//!
//! All CRC-32C here are *running*: the start value as given, no final inversion, so that a sum can be continued.
//! `docs/formats/ext4.md`, section 3, has the table of what is covered.

use super::{BlockNo, GroupNo, InodeNo, put_u16, put_u32, u16_at, u32_at};

/// Bytes of the tail that ends a directory leaf.
pub const LEAF_TAIL_BYTES: usize = 12;
/// The type byte of the tail, which no file has.
pub const LEAF_TAIL_TYPE: u8 = 0xDE;
/// Bytes of the tail of a block of the orphan file: magic and checksum.
pub const ORPHAN_TAIL_BYTES: usize = 8;
/// The magic number in the tail of a block of the orphan file.
pub const ORPHAN_MAGIC: u32 = 0x0B10_CA04;

/// The first byte of the checksum in a descriptor.
const DESCRIPTOR_AT: usize = 0x1E;
/// The first bytes of the checksum's halves in an inode.
const INODE_LOW_AT: usize = 0x7C;
const INODE_HIGH_AT: usize = 0x82;
/// The first byte of the checksum in an attribute block.
const XATTR_AT: usize = 16;
/// The first byte of a word of the superblock that no driver uses (`s_snapshot_r_blocks_count`), in its first sector.
const FREE_WORD_AT: usize = 0x188;
/// The first byte of the checksum in the superblock and in the MMP block, which cover what lies before it.
const BLOCK_1K_AT: usize = 0x3FC;

/// The inode that a block belongs to: both numbers go into the block's checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The inode's number.
    pub ino: InodeNo,
    /// Its generation.
    pub generation: u32,
}

/// A structure that carries its own checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sealed {
    /// The superblock: 1024 bytes.
    Superblock,
    /// A group's descriptor: as many bytes as descriptors have on the volume.
    Descriptor(GroupNo),
    /// An inode's slot: as many bytes as inodes have on the volume.
    Inode(InodeNo),
    /// A block of an extent tree.
    Extents(Owner),
    /// A directory block with entries.
    Leaf(Owner),
    /// Block 0 of an indexed directory.
    IndexRoot(Owner),
    /// A block of a directory with an interior node of the index.
    IndexNode(Owner),
    /// An attribute block; its number goes into the checksum.
    Xattrs(BlockNo),
    /// A block of the orphan file; its number on the volume goes into the checksum.
    OrphanFile(Owner, BlockNo),
    /// The block of the multiple mount protection.
    Mmp,
}

/// The kind of checksums that a volume has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksums {
    /// None.
    #[default]
    Absent,
    /// CRC-16 of group descriptors (uninit_bg).
    Descriptors {
        /// The volume's UUID, which goes into each of them.
        uuid: [u8; 16],
    },
    /// CRC-32C of all metadata (metadata_csum).
    All {
        /// The start of every checksum but the superblock's.
        seed: u32,
    },
}

/// A checksum as it should be, and its place in the structure.
struct Sum {
    value: u32,
    /// The first byte of the low half, or of all of it.
    at: usize,
    width: Width,
}

/// The part of a checksum that is stored.
enum Width {
    /// All 32 bits in one piece.
    Whole,
    /// The low 16 bits only.
    Low,
    /// The low 16 bits, and the high ones at another byte.
    Split(usize),
}

impl Sum {
    fn whole(value: u32, at: usize) -> Sum {
        Sum { value, at, width: Width::Whole }
    }

    /// Returns the stored value, and the value that should be there.
    fn compare(&self, bytes: &[u8]) -> (u32, u32) {
        match self.width {
            Width::Whole => (u32_at(bytes, self.at), self.value),
            Width::Low => (u16_at(bytes, self.at).into(), self.value & 0xFFFF),
            Width::Split(high) => {
                (u32::from(u16_at(bytes, self.at)) | u32::from(u16_at(bytes, high)) << 16, self.value)
            }
        }
    }

    fn store(&self, bytes: &mut [u8]) {
        match self.width {
            Width::Whole => put_u32(bytes, self.at, self.value),
            Width::Low => put_u16(bytes, self.at, self.value as u16),
            Width::Split(high) => {
                put_u16(bytes, self.at, self.value as u16);
                put_u16(bytes, high, (self.value >> 16) as u16);
            }
        }
    }
}

/// Sets a free word in the first sector of a superblock so that the checksum in its second sector is right as it is.
///
/// A driver needs a valid superblock to find the journal, so no write of it may be torn. With this the second sector
/// never changes: each write is the write of one sector.
pub fn keep_superblock_sum(superblock: &mut [u8]) {
    let rest = FREE_WORD_AT + 4..BLOCK_1K_AT;
    let wanted = superblock[rest].iter().rev().fold(u32_at(superblock, BLOCK_1K_AT), |crc, byte| before(crc, *byte));
    let found = Crc32c::START.bytes(&superblock[..FREE_WORD_AT]).0;
    put_u32(superblock, FREE_WORD_AT, found ^ (0..4).fold(wanted, |crc, _| before(crc, 0)));
}

/// Returns the CRC-32C that becomes `after` with one more byte.
fn before(after: u32, byte: u8) -> u32 {
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    // The polynomial has its highest bit set: it tells which bit was shifted out.
    const fn unshifted(crc: u32) -> u32 {
        let mut bit = 0;
        let mut crc = crc;
        while bit < 8 {
            crc = if crc & 1 << 31 == 0 { crc << 1 } else { (crc ^ POLYNOMIAL) << 1 | 1 };
            bit += 1;
        }
        crc
    }
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut top = 0;
        while top < 256 {
            table[top] = unshifted((top as u32) << 24);
            top += 1;
        }
        table
    };
    TABLE[(after >> 24) as usize] ^ after << 8 ^ u32::from(byte)
}

/// A running CRC-32C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crc32c(pub(crate) u32);

impl Crc32c {
    /// The start of checksums that have no seed.
    pub(crate) const START: Crc32c = Crc32c(!0);

    pub(crate) fn bytes(self, bytes: &[u8]) -> Crc32c {
        Crc32c(!crc32c::crc32c_append(!self.0, bytes))
    }

    fn le32(self, value: u32) -> Crc32c {
        self.bytes(&value.to_le_bytes())
    }

    fn zeros(self, count: usize) -> Crc32c {
        (0..count).fold(self, |crc, _| crc.bytes(&[0]))
    }

    /// Takes `bytes` as if those of `hole` were zeros.
    pub(crate) fn without(self, bytes: &[u8], hole: std::ops::Range<usize>) -> Crc32c {
        self.bytes(&bytes[..hole.start]).zeros(hole.len()).bytes(&bytes[hole.end..])
    }
}

impl Checksums {
    /// Returns true if bitmaps and tables of groups may be uninitialised: descriptors are protected then.
    pub fn allow_lazy_groups(&self) -> bool {
        *self != Checksums::Absent
    }

    /// Returns true if all metadata have checksums, and directory leaves therefore a tail.
    pub fn cover_all(&self) -> bool {
        matches!(self, Checksums::All { .. })
    }

    fn seed(&self) -> Option<Crc32c> {
        match self {
            Checksums::All { seed } => Some(Crc32c(*seed)),
            _ => None,
        }
    }

    /// Returns the checksum of a bitmap, of which only the bytes for existing blocks or inodes count: those of a whole
    /// group, also if the group is short. `None` on volumes without such checksums.
    pub fn of_bitmap(&self, bytes: &[u8]) -> Option<u32> {
        self.seed().map(|seed| seed.bytes(bytes).0)
    }

    /// Returns the checksum of an attribute value that lies in an inode of its own.
    pub fn of_value(&self, value: &[u8]) -> Option<u32> {
        self.of_bitmap(value)
    }

    /// Compares the checksum in a structure with its bytes. Does nothing on volumes without it.
    ///
    /// # Errors
    /// The difference as a clause: "its checksum is …, should be …"; or that the structure has no place for one.
    pub fn verify(&self, what: Sealed, bytes: &[u8]) -> Result<(), String> {
        let Some(sum) = self.sum(what, bytes)? else { return Ok(()) };
        let (found, expected) = sum.compare(bytes);
        if found == expected {
            return Ok(());
        }
        let digits = if matches!(sum.width, Width::Low) { 4 } else { 8 };
        Err(format!("its checksum is 0x{found:0digits$x}, should be 0x{expected:0digits$x}"))
    }

    /// Stores the checksum of a structure. Does nothing on volumes without it, but in the orphan file, which has a zero
    /// there.
    ///
    /// # Errors
    /// If the structure has no place for one, such as a leaf without a tail.
    pub fn seal(&self, what: Sealed, bytes: &mut [u8]) -> Result<(), String> {
        if let Some(sum) = self.sum(what, bytes)? {
            sum.store(bytes);
        }
        Ok(())
    }

    fn sum(&self, what: Sealed, bytes: &[u8]) -> Result<Option<Sum>, String> {
        if let (Checksums::Descriptors { uuid }, Sealed::Descriptor(group)) = (self, what) {
            let value = descriptor_crc16(uuid, group, bytes).into();
            return Ok(Some(Sum { value, at: DESCRIPTOR_AT, width: Width::Low }));
        }
        let Some(seed) = self.seed() else {
            // The place of this one is there on volumes without checksums as well.
            let is_zero = matches!(what, Sealed::OrphanFile(..));
            return Ok(is_zero.then(|| Sum::whole(0, bytes.len() - 4)));
        };
        let owned = |owner: Owner| seed.le32(owner.ino.0).le32(owner.generation);
        let sum = match what {
            Sealed::Superblock => Sum::whole(Crc32c::START.bytes(&bytes[..BLOCK_1K_AT]).0, BLOCK_1K_AT),
            Sealed::Mmp => Sum::whole(seed.bytes(&bytes[..BLOCK_1K_AT]).0, BLOCK_1K_AT),
            Sealed::Descriptor(group) => {
                let crc = seed.le32(group.0).without(bytes, DESCRIPTOR_AT..DESCRIPTOR_AT + 2);
                Sum { value: crc.0, at: DESCRIPTOR_AT, width: Width::Low }
            }
            Sealed::Inode(ino) => inode_sum(owned(Owner { ino, generation: u32_at(bytes, 0x64) }), bytes),
            Sealed::Extents(owner) => {
                let end = 12 + 12 * usize::from(u16_at(bytes, 4));
                if end + 4 > bytes.len() {
                    return Err(format!("eh_max is {}, which leaves no room for a checksum", u16_at(bytes, 4)));
                }
                Sum::whole(owned(owner).bytes(&bytes[..end]).0, end)
            }
            Sealed::Leaf(owner) => {
                let end = bytes.len() - LEAF_TAIL_BYTES;
                if !is_leaf_tail(&bytes[end..]) {
                    return Err("the directory block does not end with a checksum".to_owned());
                }
                Sum::whole(owned(owner).bytes(&bytes[..end]).0, end + 8)
            }
            Sealed::IndexRoot(owner) => index_sum(owned(owner), bytes, 32)?,
            Sealed::IndexNode(owner) => index_sum(owned(owner), bytes, 8)?,
            Sealed::Xattrs(block) => {
                let crc = seed.bytes(&block.0.to_le_bytes()).without(bytes, XATTR_AT..XATTR_AT + 4);
                Sum::whole(crc.0, XATTR_AT)
            }
            Sealed::OrphanFile(owner, block) => {
                let end = bytes.len() - ORPHAN_TAIL_BYTES;
                Sum::whole(owned(owner).bytes(&block.0.to_le_bytes()).bytes(&bytes[..end]).0, end + 4)
            }
        };
        Ok(Some(sum))
    }
}

/// Returns true if these last bytes of a directory block are the tail with the checksum.
pub fn is_leaf_tail(tail: &[u8]) -> bool {
    u32_at(tail, 0) == 0 && u16_at(tail, 4) == LEAF_TAIL_BYTES as u16 && tail[6] == 0 && tail[7] == LEAF_TAIL_TYPE
}

fn descriptor_crc16(uuid: &[u8; 16], group: GroupNo, slot: &[u8]) -> u16 {
    // The polynomial 0x8005, reflected, from ones, without a final inversion.
    const CRC: crc::Crc<u16> = crc::Crc::<u16>::new(&crc::CRC_16_MODBUS);
    let mut digest = CRC.digest();
    digest.update(uuid);
    digest.update(&group.0.to_le_bytes());
    digest.update(&slot[..DESCRIPTOR_AT]);
    digest.update(&slot[DESCRIPTOR_AT + 2..]);
    digest.finalize()
}

fn inode_sum(start: Crc32c, slot: &[u8]) -> Sum {
    let has_high = slot.len() > INODE_HIGH_AT + 2 && u16_at(slot, 0x80) >= 4;
    let crc = start.bytes(&slot[..INODE_LOW_AT]).zeros(2);
    if !has_high {
        return Sum { value: crc.bytes(&slot[INODE_LOW_AT + 2..]).0, at: INODE_LOW_AT, width: Width::Low };
    }
    let crc = crc.bytes(&slot[INODE_LOW_AT + 2..INODE_HIGH_AT]).zeros(2).bytes(&slot[INODE_HIGH_AT + 2..]);
    Sum { value: crc.0, at: INODE_LOW_AT, width: Width::Split(INODE_HIGH_AT) }
}

/// The checksum of an index node whose entries begin at `at`: only the entries in use are covered.
fn index_sum(start: Crc32c, block: &[u8], at: usize) -> Result<Sum, String> {
    let (limit, count) = (usize::from(u16_at(block, at)), usize::from(u16_at(block, at + 2)));
    let tail = at + 8 * limit;
    if tail + 8 > block.len() || count > limit {
        return Err(format!(
            "the node has {count} entries and a limit of {limit}, which leaves no room for a checksum"
        ));
    }
    let value = start.bytes(&block[..at + 8 * count]).bytes(&block[tail..tail + 4]).zeros(4).0;
    Ok(Sum::whole(value, tail + 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// A golden vector: the bytes behind its start, and what is stored.
    struct Vector {
        start: u32,
        algorithm: String,
        parts: Vec<Vec<u8>>,
        value: u32,
        mask: u32,
    }

    fn number(value: &Value) -> u32 {
        u32::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
    }

    fn hex(text: &str) -> Vec<u8> {
        if let Some(count) = text.strip_prefix("zeros:") {
            return vec![0; count.parse().unwrap()];
        }
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn golden() -> Vec<(String, Vector)> {
        let text = include_str!("../../golden/ext4/checksums.json");
        let all: Value = serde_json::from_str(text).unwrap();
        let vector = |entry: &Value| Vector {
            start: number(&entry["start"]),
            algorithm: entry["algorithm"].as_str().unwrap().to_owned(),
            parts: entry["parts"].as_array().unwrap().iter().map(|part| hex(part.as_str().unwrap())).collect(),
            value: number(&entry["value"]),
            mask: entry.get("mask").map_or(!0, number),
        };
        let entries = all["checksums"].as_array().unwrap();
        entries.iter().map(|entry| (entry["name"].as_str().unwrap().to_owned(), vector(entry))).collect()
    }

    fn named(name: &str) -> Vector {
        golden().into_iter().find(|(known, _)| known.starts_with(name)).unwrap_or_else(|| panic!("no vector {name}")).1
    }

    #[test]
    fn every_golden_crc32c_is_reproduced() {
        let mut seen = 0;
        for (name, vector) in golden().into_iter().filter(|(_, vector)| vector.algorithm == "crc32c") {
            let crc = Crc32c(vector.start).bytes(&vector.parts.concat());
            assert_eq!(crc.0 & vector.mask, vector.value, "{name}");
            seen += 1;
        }
        assert_eq!(seen, 26);
    }

    /// Seals a structure whose checksum is zeros, and compares the stored bytes with the golden value.
    fn check(name: &str, what: Sealed, skip: usize, tail: &[u8]) {
        let vector = named(name);
        let all = vector.parts.concat();
        let mut bytes = [&all[skip..], tail].concat();
        let sums = Checksums::All { seed: vector.start };
        sums.seal(what, &mut bytes).unwrap();
        sums.verify(what, &bytes).unwrap();
        let sum = sums.sum(what, &bytes).unwrap().unwrap();
        assert_eq!(sum.compare(&bytes), (vector.value, vector.value), "{name}");
        let middle = bytes.len() / 3;
        bytes[middle] ^= 1;
        assert!(sums.verify(what, &bytes).unwrap_err().contains("should be"), "{name}");
    }

    fn owner_in(name: &str) -> Owner {
        let all = named(name).parts.concat();
        Owner { ino: InodeNo(u32_at(&all, 0)), generation: u32_at(&all, 4) }
    }

    #[test]
    fn structures_get_the_checksums_that_the_reference_stored() {
        check("superblock", Sealed::Superblock, 0, &[0; 4]);
        for (name, group) in [
            ("group 0 descriptor, 64 bytes, metadata_csum", 0),
            ("group 3 descriptor, 64 bytes, metadata_csum", 3),
            ("group 1 descriptor, 32 bytes, metadata_csum", 1),
        ] {
            check(name, Sealed::Descriptor(GroupNo(group)), 4, &[]);
        }
        for name in ["inode 1526", "root inode", "root inode, 128-byte"] {
            check(name, Sealed::Inode(owner_in(name).ino), 8, &[]);
        }
        let name = "extent block";
        check(name, Sealed::Extents(owner_in(name)), 8, &[0; 4]);
        let name = "directory leaf";
        check(name, Sealed::Leaf(owner_in(name)), 8, &[0, 0, 0, 0, 12, 0, 0, 0xDE, 0, 0, 0, 0]);
        let xattrs = named("xattr block").parts.concat();
        let block = u64::from(u32_at(&xattrs, 0));
        check("xattr block", Sealed::Xattrs(BlockNo(block)), 8, &[]);
        check("MMP block", Sealed::Mmp, 0, &[0; 4]);
        let name = "orphan file block";
        let orphans = named(name).parts.concat();
        let block = BlockNo(u32_at(&orphans, 8).into());
        let tail = [&ORPHAN_MAGIC.to_le_bytes()[..], &[0; 4]].concat();
        check(name, Sealed::OrphanFile(owner_in(name), block), 16, &tail);
    }

    #[test]
    fn an_index_root_covers_its_entries_in_use() {
        let vector = named("htree root");
        let all = vector.parts.concat();
        let entries = &all[8..all.len() - 8];
        let mut block = vec![0xA5; 1024];
        block[..entries.len()].copy_from_slice(entries);
        let limit = usize::from(u16_at(&block, 32));
        // The kernel leaves what was the leaf's tail in the reserved word.
        block[32 + 8 * limit..1020].copy_from_slice(&all[all.len() - 8..all.len() - 4]);
        let sums = Checksums::All { seed: vector.start };
        let what = Sealed::IndexRoot(owner_in("htree root"));
        sums.seal(what, &mut block).unwrap();
        assert_eq!(u32_at(&block, 1020), vector.value);
        put_u16(&mut block, 32, 200);
        assert!(sums.verify(what, &block).unwrap_err().contains("no room"));
    }

    #[test]
    fn descriptors_of_uninit_bg_have_a_crc16() {
        for (name, bytes) in
            [("group 1 descriptor, 64 bytes, uninit_bg", 64), ("group 1 descriptor, 32 bytes, uninit_bg", 32)]
        {
            let vector = named(name);
            let all = vector.parts.concat();
            let mut uuid = [0; 16];
            uuid.copy_from_slice(&all[..16]);
            let mut slot = vec![0xFF; bytes];
            slot[..0x1E].copy_from_slice(&all[20..50]);
            slot[0x20..].copy_from_slice(&all[50..]);
            let sums = Checksums::Descriptors { uuid };
            sums.seal(Sealed::Descriptor(GroupNo(1)), &mut slot).unwrap();
            assert_eq!(u32::from(u16_at(&slot, 0x1E)), vector.value, "{name}");
            sums.verify(Sealed::Inode(InodeNo(2)), &[0; 128]).unwrap();
        }
    }

    #[test]
    fn bitmaps_and_values_continue_the_seed() {
        let vector = named("block bitmap of group 0");
        let sums = Checksums::All { seed: vector.start };
        assert_eq!(sums.of_bitmap(&vector.parts.concat()), Some(vector.value));
        assert_eq!(sums.of_value(&[b'B'; 5000]), Some(named("ea inode value").value));
        assert_eq!(Checksums::Absent.of_bitmap(&[1]), None);
    }

    #[test]
    fn a_leaf_without_a_tail_is_named() {
        let sums = Checksums::All { seed: 1 };
        let owner = Owner { ino: InodeNo(2), generation: 0 };
        assert!(sums.verify(Sealed::Leaf(owner), &[0; 1024]).unwrap_err().contains("does not end"));
        let mut extents = [0; 1024];
        put_u16(&mut extents, 4, 85);
        assert!(sums.verify(Sealed::Extents(owner), &extents).unwrap_err().contains("eh_max"));
    }
}
