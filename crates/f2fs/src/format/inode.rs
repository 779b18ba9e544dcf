//! Inodes: the fixed fields, and what lies between them and the footer.
//!
//! An inode is a node block. Between its fixed fields and its five node ids lie 923 words that several things share
//! ([`Layout`]): an *extra* area at the start on volumes with that feature, extended attributes in the last words, and
//! between them either addresses of data blocks or, inline, the data or directory entries themselves (sections 6.1 to
//! 6.3). [`Inode`] is the meaning of the fixed fields and the extra area; writing it back leaves the rest alone.

use std::ops::Range;

use bitflags::bitflags;
use moafs_runtime::Timestamp;
use moafs_vfs::types::FileKind;

use super::node::{Footer, lbn_limit};
use super::{BLOCK, BlkAddr, Damage, Nid, Structure, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// Words that addresses, the extra area and inline attributes share.
pub const ADDRS_PER_INODE: usize = 923;
/// Node ids in an inode: two direct nodes, two indirect, one double indirect.
pub const NIDS_PER_INODE: usize = 5;
/// The longest name.
pub const NAME_MAX: usize = 255;
/// The largest extra area, in bytes: what new inodes get on volumes with the feature.
pub const EXTRA_ISIZE_MAX: u16 = 36;
/// Words that inline attributes take unless the inode says otherwise.
pub const INLINE_XATTR_WORDS: u16 = 50;

const NAME: usize = 92;
const EXT: Range<usize> = 348..360;
const ADDRS: usize = 360;
const NIDS: usize = 4052;
const CHECKSUM: Range<usize> = 368..372;
/// `i_extra_isize` from which on a field is there.
const COVERS_PROJID: u16 = 8;
const COVERS_CHECKSUM: u16 = 12;
const COVERS_CRTIME: u16 = 24;

bitflags! {
    /// `i_inline`: what lies inside the inode, and other marks.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Inline: u8 {
        /// Extended attributes.
        const XATTR = 0x01;
        /// The file's data.
        const DATA = 0x02;
        /// The directory's entries.
        const DENTRY = 0x04;
        /// Inline data have been written.
        const DATA_EXIST = 0x08;
        /// The entries `.` and `..` are missing and must be added.
        const DOTS = 0x10;
        /// The extra area.
        const EXTRA_ATTR = 0x20;
        /// The file's blocks must not move.
        const PIN_FILE = 0x40;
        /// Blocks that compression saved were given back.
        const COMPRESS_RELEASED = 0x80;
    }
}

bitflags! {
    /// `i_advise`: hints about a file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Advise: u8 {
        /// Its data rarely change.
        const COLD = 0x01;
        /// `pino` may be wrong.
        const LOST_PINO = 0x02;
        /// Encrypted.
        const ENCRYPT = 0x04;
        /// Its name is encrypted.
        const ENC_NAME = 0x08;
        /// Recovery must not let it grow over blocks beyond its end.
        const KEEP_SIZE = 0x10;
        /// Its data change often.
        const HOT = 0x20;
        /// Sealed by fs-verity.
        const VERITY = 0x40;
    }
}

bitflags! {
    /// `i_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// Compressed.
        const COMPRESSED = 0x4;
        /// Every write is a synchronous one.
        const SYNC = 0x8;
        /// Nothing may change.
        const IMMUTABLE = 0x10;
        /// May only grow.
        const APPEND = 0x20;
        /// Backups leave it out.
        const NODUMP = 0x40;
        /// Reading does not change the time of last access.
        const NOATIME = 0x80;
        /// Must not be compressed.
        const NOCOMPRESS = 0x400;
        /// A hashed directory.
        const INDEX = 0x1000;
        /// Every change of the directory is a synchronous one.
        const DIRSYNC = 0x1_0000;
        /// New files get the directory's project.
        const PROJECT_INHERIT = 0x2000_0000;
        /// Names are compared without regard to case.
        const CASEFOLD = 0x4000_0000;
        // Bits this crate does not know survive a rewrite.
        const _ = !0;
    }
}

/// Which optional parts the inodes of a volume have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Variant {
    /// Inodes with an extra area say themselves how many words their inline attributes take.
    pub flexible_inline_xattr: bool,
    /// Inodes whose extra area covers it know when they were created.
    pub crtime: bool,
}

/// The extra area, as far as this crate knows it; the compression fields stay as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extra {
    /// Its bytes: a multiple of 4, at least 4 and at most [`EXTRA_ISIZE_MAX`].
    pub isize: u16,
    /// Words for inline attributes; has a meaning only on volumes with flexible inline attributes.
    pub inline_xattr_words: u16,
    /// Project, if the area covers it.
    pub projid: u32,
    /// Time of creation, if the area covers it and the volume has it.
    pub crtime: Option<Timestamp>,
}

/// The fixed fields of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Type and permissions.
    pub mode: u16,
    /// The type in `mode`.
    pub kind: FileKind,
    /// Hints.
    pub advise: Advise,
    /// What lies inside.
    pub inline: Inline,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names; of a directory 2 and its subdirectories.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 4096 bytes: the inode, its nodes, its data, its reserved blocks.
    pub blocks: u64,
    /// Time of last access.
    pub atime: Timestamp,
    /// Time of last change of the inode.
    pub ctime: Timestamp,
    /// Time of last change of the contents.
    pub mtime: Timestamp,
    /// Tells apart inodes that had the same number.
    pub generation: u32,
    /// Levels of the hash table (directories); of other files 0.
    pub current_depth: u32,
    /// The node with those attributes that are not inline.
    pub xattr_nid: Nid,
    /// Flags.
    pub flags: InodeFlags,
    /// The directory that holds the name below; recovery needs both.
    pub pino: Nid,
    /// The last known name.
    pub name: Box<[u8]>,
    /// Added to the level of a hash table when counting its buckets (directories).
    pub dir_level: u8,
    /// The extra area, where there is one.
    pub extra: Option<Extra>,
}

fn time_at(block: &[u8], secs: usize, nanos: usize) -> Timestamp {
    Timestamp::new(u64_at(block, secs) as i64, u32_at(block, nanos))
}

fn put_time(block: &mut [u8], secs: usize, nanos: usize, time: Timestamp) {
    put_u64(block, secs, time.secs as u64);
    put_u32(block, nanos, time.nanos);
}

impl Inode {
    /// Decodes the node block of inode `nid`.
    ///
    /// # Errors
    /// If the footer names another node, or a field has a value that no inode can have.
    pub fn decode(block: &[u8], nid: Nid, variant: Variant) -> Result<Inode, Damage> {
        Footer::decode_of(block, nid, nid)?;
        let damaged = |problem: String| Structure::Inode(nid).damage(None, problem);
        let mode = u16_at(block, 0);
        let kind = FileKind::from_mode(mode.into())
            .ok_or_else(|| damaged(format!("its mode is {mode:#o}, which is no kind of file")))?;
        let name_len = u32_at(block, 88) as usize;
        if name_len > NAME_MAX {
            return Err(damaged(format!("its name has {name_len} bytes")));
        }
        let inline = Inline::from_bits_retain(block[3]);
        let extra = inline.contains(Inline::EXTRA_ATTR).then(|| Extra::decode(block, variant)).transpose();
        let inode = Inode {
            mode,
            kind,
            advise: Advise::from_bits_retain(block[2]),
            inline,
            uid: u32_at(block, 4),
            gid: u32_at(block, 8),
            links: u32_at(block, 12),
            size: u64_at(block, 16),
            blocks: u64_at(block, 24),
            atime: time_at(block, 32, 56),
            ctime: time_at(block, 40, 60),
            mtime: time_at(block, 48, 64),
            generation: u32_at(block, 68),
            current_depth: u32_at(block, 72),
            xattr_nid: Nid(u32_at(block, 76)),
            flags: InodeFlags::from_bits_retain(u32_at(block, 80)),
            pino: Nid(u32_at(block, 84)),
            name: block[NAME..NAME + name_len].into(),
            dir_level: block[347],
            extra: extra.map_err(damaged)?,
        };
        inode.check(variant).map_err(damaged)?;
        Ok(inode)
    }

    /// What fields say about each other.
    fn check(&self, variant: Variant) -> Result<(), String> {
        let Layout { extra_words, xattr_words } = self.layout(variant);
        if usize::from(extra_words) + usize::from(xattr_words) + 1 >= ADDRS_PER_INODE {
            return Err(format!("its inline attributes take {xattr_words} words, which leaves no room for data"));
        }
        let directory = self.kind == FileKind::Directory;
        if self.inline.contains(Inline::DENTRY) && !directory {
            return Err(format!("it has inline entries, but is a {:?}", self.kind));
        }
        if directory && self.current_depth > super::dentry::DEPTH_MAX {
            return Err(format!("its hash table has {} levels", self.current_depth));
        }
        if self.inline.contains(Inline::DATA) {
            let room = self.layout(variant).inline_range().len() as u64;
            if !matches!(self.kind, FileKind::Regular | FileKind::Symlink) {
                return Err(format!("it has inline data, but is a {:?}", self.kind));
            }
            if self.size > room {
                return Err(format!("it has inline data of {} bytes in the room for {room}", self.size));
            }
        }
        if self.size > lbn_limit(ADDRS_PER_INODE as u32) * BLOCK as u64 {
            return Err(format!("it has {} bytes, more than any file can have", self.size));
        }
        Ok(())
    }

    /// Writes the fields and the extra area and forgets the cached extent. Everything else in the block (addresses,
    /// inline contents, node ids, footer, checksum) is left alone.
    ///
    /// # Panics
    /// If the name is longer than [`NAME_MAX`], or the extra area's presence and the inline mark disagree.
    pub fn encode_into(&self, block: &mut [u8]) {
        assert_eq!(self.inline.contains(Inline::EXTRA_ATTR), self.extra.is_some(), "the mark of the extra area");
        put_u16(block, 0, self.mode);
        block[2] = self.advise.bits();
        block[3] = self.inline.bits();
        put_u32(block, 4, self.uid);
        put_u32(block, 8, self.gid);
        put_u32(block, 12, self.links);
        put_u64(block, 16, self.size);
        put_u64(block, 24, self.blocks);
        put_time(block, 32, 56, self.atime);
        put_time(block, 40, 60, self.ctime);
        put_time(block, 48, 64, self.mtime);
        put_u32(block, 68, self.generation);
        put_u32(block, 72, self.current_depth);
        put_u32(block, 76, self.xattr_nid.0);
        put_u32(block, 80, self.flags.bits());
        put_u32(block, 84, self.pino.0);
        put_u32(block, 88, self.name.len() as u32);
        let field = &mut block[NAME..NAME + NAME_MAX];
        field.fill(0);
        field[..self.name.len()].copy_from_slice(&self.name);
        block[347] = self.dir_level;
        block[EXT].fill(0);
        if let Some(extra) = &self.extra {
            extra.encode_into(block);
        }
    }

    /// Where the parts of this inode lie.
    pub fn layout(&self, variant: Variant) -> Layout {
        let extra = self.extra.as_ref().map(|extra| (extra.isize, extra.inline_xattr_words));
        Layout::from_fields(self.inline, extra, variant.flexible_inline_xattr)
    }
}

impl Extra {
    fn decode(block: &[u8], variant: Variant) -> Result<Extra, String> {
        let isize = u16_at(block, 360);
        if !isize.is_multiple_of(4) || !(4..=EXTRA_ISIZE_MAX).contains(&isize) {
            return Err(format!("its extra area has {isize} bytes"));
        }
        let crtime = variant.crtime && isize >= COVERS_CRTIME;
        Ok(Extra {
            isize,
            inline_xattr_words: u16_at(block, 362),
            projid: if isize >= COVERS_PROJID { u32_at(block, 364) } else { 0 },
            crtime: crtime.then(|| time_at(block, 372, 380)),
        })
    }

    fn encode_into(&self, block: &mut [u8]) {
        put_u16(block, 360, self.isize);
        put_u16(block, 362, self.inline_xattr_words);
        if self.isize >= COVERS_PROJID {
            put_u32(block, 364, self.projid);
        }
        if let (Some(crtime), COVERS_CRTIME..) = (self.crtime, self.isize) {
            put_time(block, 372, 380, crtime);
        }
    }
}

/// Where things lie in an inode's shared words. Holds for every block, whatever its bytes: what a damaged inode claims
/// is cut to what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    extra_words: u16,
    xattr_words: u16,
}

impl Layout {
    /// An inode with this many words of extra area (as far as there can be) and of inline attributes (as far as there
    /// is room).
    pub fn new(extra_words: u16, xattr_words: u16) -> Layout {
        let extra_words = extra_words.min(EXTRA_ISIZE_MAX / 4);
        Layout { extra_words, xattr_words: xattr_words.min(ADDRS_PER_INODE as u16 - extra_words) }
    }

    /// The layout of an inode's block; `flexible` if the volume has flexible inline attributes.
    pub fn of(block: &[u8], flexible: bool) -> Layout {
        let inline = Inline::from_bits_retain(block[3]);
        let extra = inline.contains(Inline::EXTRA_ATTR).then(|| (u16_at(block, 360), u16_at(block, 362)));
        Layout::from_fields(inline, extra, flexible)
    }

    /// `extra`: size of the extra area in bytes, and the words it gives to inline attributes.
    fn from_fields(inline: Inline, extra: Option<(u16, u16)>, flexible: bool) -> Layout {
        let xattr_words = match extra {
            Some((_, words)) if flexible => words,
            _ if inline.intersects(Inline::XATTR | Inline::DENTRY) => INLINE_XATTR_WORDS,
            _ => 0,
        };
        Layout::new(extra.map_or(0, |(isize, _)| isize / 4), xattr_words)
    }

    /// Words of the extra area.
    pub fn extra_words(&self) -> u16 {
        self.extra_words
    }

    /// Words of inline attributes.
    pub fn xattr_words(&self) -> u16 {
        self.xattr_words
    }

    /// Addresses the inode can hold.
    pub fn addresses(&self) -> u32 {
        ADDRS_PER_INODE as u32 - u32::from(self.extra_words) - u32::from(self.xattr_words)
    }

    fn addr_offset(&self, slot: usize) -> Option<usize> {
        (slot < self.addresses() as usize).then(|| ADDRS + 4 * (usize::from(self.extra_words) + slot))
    }

    /// The address in a slot, counted as summaries do: from the end of the extra area. No block beyond the last slot.
    pub fn addr(&self, block: &[u8], slot: usize) -> BlkAddr {
        self.addr_offset(slot).map_or(BlkAddr::NULL, |at| BlkAddr(u32_at(block, at)))
    }

    /// Sets the address in a slot.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn set_addr(&self, block: &mut [u8], slot: usize, address: BlkAddr) {
        let at = self.addr_offset(slot).unwrap_or_else(|| panic!("slot {slot} of an inode with {self:?}"));
        put_u32(block, at, address.0);
    }

    /// All bytes that hold addresses.
    pub fn addr_range(&self) -> Range<usize> {
        let start = ADDRS + 4 * usize::from(self.extra_words);
        start..start + 4 * self.addresses() as usize
    }

    /// The bytes of inline data or entries: behind one reserved word, which must be 0.
    pub fn inline_range(&self) -> Range<usize> {
        let Range { start, end } = self.addr_range();
        (start + 4).min(end)..end
    }

    /// The bytes of inline attributes.
    pub fn inline_xattr_range(&self) -> Range<usize> {
        NIDS - 4 * usize::from(self.xattr_words)..NIDS
    }

    /// Major and minor number of a device node.
    pub fn device(&self, block: &[u8]) -> (u32, u32) {
        let (old, new) = (self.addr(block, 0).0, self.addr(block, 1).0);
        if old != 0 {
            return (old >> 8 & 0xFF, old & 0xFF);
        }
        (new >> 8 & 0xFFF, new & 0xFF | new >> 12 & 0xF_FF00)
    }

    /// Sets major (12 bits) and minor (20 bits) number of a device node.
    pub fn set_device(&self, block: &mut [u8], major: u32, minor: u32) {
        let (old, new) = if major < 256 && minor < 256 {
            (major << 8 | minor, 0)
        } else {
            (0, minor & 0xFF | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12)
        };
        self.set_addr(block, 0, BlkAddr(old));
        self.set_addr(block, 1, BlkAddr(new));
    }
}

/// `i_size` of an inode's block.
pub fn size(block: &[u8]) -> u64 {
    u64_at(block, 16)
}

/// Sets `i_size`.
pub fn set_size(block: &mut [u8], bytes: u64) {
    put_u64(block, 16, bytes);
}

/// `i_blocks` of an inode's block: see [`Inode::blocks`].
pub fn blocks(block: &[u8]) -> u64 {
    u64_at(block, 24)
}

/// Sets `i_blocks`.
pub fn set_blocks(block: &mut [u8], blocks: u64) {
    put_u64(block, 24, blocks);
}

/// One of the inode's node ids; none beyond the last slot.
pub fn nid_slot(block: &[u8], slot: usize) -> Nid {
    if slot < NIDS_PER_INODE { Nid(u32_at(block, NIDS + 4 * slot)) } else { Nid::NONE }
}

/// Sets one of the inode's node ids.
///
/// # Panics
/// If there is no such slot.
pub fn set_nid_slot(block: &mut [u8], slot: usize, nid: Nid) {
    assert!(slot < NIDS_PER_INODE, "node id {slot} of an inode");
    put_u32(block, NIDS + 4 * slot, nid.0);
}

/// True if an inode of a volume with inode checksums carries one.
pub fn has_checksum(block: &[u8]) -> bool {
    Inline::from_bits_retain(block[3]).contains(Inline::EXTRA_ATTR) && u16_at(block, 360) >= COVERS_CHECKSUM
}

/// The checksum that an inode's block should carry. It covers the footer.
pub fn checksum(block: &[u8], uuid: &[u8; 16]) -> u32 {
    let ino = Footer::decode(block).ino.0.to_le_bytes();
    [&uuid[..], &ino, &block[68..72], &block[..CHECKSUM.start], &[0; 4], &block[CHECKSUM.end..BLOCK]]
        .into_iter()
        .fold(u32::MAX, crc32)
}

/// Writes the checksum of an inode that carries one: the last thing before the block is written.
pub fn seal_checksum(block: &mut [u8], uuid: &[u8; 16]) {
    if has_checksum(block) {
        let sum = checksum(block, uuid);
        put_u32(block, CHECKSUM.start, sum);
    }
}

/// Checks the checksum of an inode that carries one.
///
/// # Errors
/// What is wrong, in words.
pub fn verify_checksum(block: &[u8], uuid: &[u8; 16]) -> Result<(), String> {
    let (stored, right) = (u32_at(block, CHECKSUM.start), checksum(block, uuid));
    if has_checksum(block) && stored != right {
        return Err(format!("its checksum is {stored:#010x}, its bytes have {right:#010x}"));
    }
    Ok(())
}

/// CRC-32 without the final inversion (section 1.2).
fn crc32(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 })
    })
}
