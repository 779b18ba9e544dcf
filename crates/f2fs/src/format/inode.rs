//! Inodes: the fixed fields, and the contents between them and the footer.
//!
//! An inode is a node block. Between its fixed fields and its five node ids lie 923 words that several things share
//! ([`Layout`]): an *extra* area at the start on volumes with that feature, extended attributes in the last words, and
//! between them either addresses of data blocks or, inline, the data or directory entries themselves (sections 6.1 to
//! 6.3). [`Inode`] is the meaning of the fixed fields and the extra area; writing it back leaves the rest alone.

use std::ops::Range;

use bitflags::bitflags;
use moafs_runtime::Timestamp;
use moafs_vfs::types::FileKind;

use super::crc::crc32;
use super::node::{Footer, lbn_limit};
use super::superblock::Features;
use super::{BLOCK, BlkAddr, Damage, Nid, Structure, put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// Words that addresses, the extra area and inline attributes share.
pub const ADDRS_PER_INODE: usize = 923;
/// Node ids in an inode: two direct nodes, two indirect, one double indirect.
pub const NIDS_PER_INODE: usize = 5;
/// Bytes of the longest name.
pub const NAME_MAX: usize = 255;
/// The largest extra area, in bytes: what new inodes get on volumes with the feature.
pub const EXTRA_ISIZE_MAX: u16 = 36;
/// The largest `i_inline_xattr_size`: beside the largest extra area, the reserved word and 10 words of inline entries
/// are left (as `fsck.f2fs` 1.15 counts, also for inodes with a smaller extra area).
pub const INLINE_XATTR_WORDS_MAX: u16 = ADDRS_PER_INODE as u16 - EXTRA_ISIZE_MAX / 4 - 1 - 10;
/// Words that inline attributes take unless the inode says otherwise.
pub const INLINE_XATTR_WORDS: u16 = 50;

/// Offsets of the fields in the inode's block (section 6.1).
mod at {
    use std::ops::Range;

    pub(super) const MODE: usize = 0;
    pub(super) const ADVISE: usize = 2;
    pub(super) const INLINE: usize = 3;
    pub(super) const UID: usize = 4;
    pub(super) const GID: usize = 8;
    pub(super) const LINKS: usize = 12;
    pub(super) const SIZE: usize = 16;
    pub(super) const BLOCKS: usize = 24;
    /// The seconds of a time, and its nanoseconds.
    pub(super) const ATIME: (usize, usize) = (32, 56);
    pub(super) const CTIME: (usize, usize) = (40, 60);
    pub(super) const MTIME: (usize, usize) = (48, 64);
    pub(super) const GENERATION: usize = 68;
    pub(super) const CURRENT_DEPTH: usize = 72;
    pub(super) const XATTR_NID: usize = 76;
    pub(super) const FLAGS: usize = 80;
    pub(super) const PINO: usize = 84;
    pub(super) const NAME_LEN: usize = 88;
    pub(super) const NAME: usize = 92;
    pub(super) const DIR_LEVEL: usize = 347;
    /// The cached extent.
    pub(super) const EXT: Range<usize> = 348..360;
    /// The words that addresses, the extra area and inline attributes share.
    pub(super) const ADDRS: usize = 360;
    /// The fields of the extra area, which takes the first of these words.
    pub(super) const EXTRA_ISIZE: usize = 360;
    pub(super) const INLINE_XATTR_WORDS: usize = 362;
    pub(super) const PROJID: usize = 364;
    pub(super) const CHECKSUM: Range<usize> = 368..372;
    pub(super) const CRTIME: (usize, usize) = (372, 380);
    /// The node ids.
    pub(super) const NIDS: usize = 4052;
}

/// `i_extra_isize` from which on a field is there.
const COVERS_PROJID: u16 = 8;
const COVERS_CHECKSUM: u16 = 12;
const COVERS_CRTIME: u16 = 24;

bitflags! {
    /// `i_inline`: the contents that lie inside the inode, and other marks.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Inline: u8 {
        /// Extended attributes lie inside.
        const XATTR = 0x01;
        /// The file's data lie inside.
        const DATA = 0x02;
        /// The directory's entries lie inside.
        const DENTRY = 0x04;
        /// Inline data have been written.
        const DATA_EXIST = 0x08;
        /// The entries `.` and `..` are missing and must be added.
        const DOTS = 0x10;
        /// The extra area is present.
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
        /// The file's contents are encrypted.
        const ENCRYPT = 0x04;
        /// Its name is encrypted.
        const ENC_NAME = 0x08;
        /// Recovery must not let it grow over blocks beyond its end.
        const KEEP_SIZE = 0x10;
        /// Its data change often.
        const HOT = 0x20;
        /// The contents are protected by fs-verity.
        const VERITY = 0x40;
    }
}

bitflags! {
    /// `i_flags`: properties of the file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// The file's contents are compressed.
        const COMPRESSED = 0x4;
        /// Every write is a synchronous one.
        const SYNC = 0x8;
        /// Nothing of the file may change.
        const IMMUTABLE = 0x10;
        /// The file may only grow.
        const APPEND = 0x20;
        /// Backups leave it out.
        const NODUMP = 0x40;
        /// Reading does not change the time of last access.
        const NOATIME = 0x80;
        /// Must not be compressed.
        const NOCOMPRESS = 0x400;
        /// The directory is a hash table.
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

/// The fields of the extra area that this crate knows; the compression fields stay as they are.
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
    /// The type of the file and its permissions, as in `st_mode`.
    pub mode: u16,
    /// The type in `mode`.
    pub kind: FileKind,
    /// Hints about the file's data and name.
    pub advise: Advise,
    /// The contents that lie inside the inode.
    pub inline: Inline,
    /// The owner's user id.
    pub uid: u32,
    /// The group id of the file.
    pub gid: u32,
    /// Names; of a directory 2 and its subdirectories.
    pub links: u32,
    /// The size of the file in bytes.
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
    /// The flags of the file.
    pub flags: InodeFlags,
    /// The directory that holds the name below; recovery needs both.
    pub pino: Nid,
    /// The last known name.
    pub name: Box<[u8]>,
    /// Added to the level of a hash table when counting its buckets (directories).
    pub dir_level: u8,
    /// The extra area, if the inode has one.
    pub extra: Option<Extra>,
}

fn time_at(block: &[u8], (secs, nanos): (usize, usize)) -> Timestamp {
    Timestamp::new(u64_at(block, secs) as i64, u32_at(block, nanos))
}

fn put_time(block: &mut [u8], (secs, nanos): (usize, usize), time: Timestamp) {
    put_u64(block, secs, time.secs as u64);
    put_u32(block, nanos, time.nanos);
}

impl Inode {
    /// Decodes the node block of inode `nid`.
    ///
    /// # Errors
    /// If the footer names another node, or a field has a value that no inode can have.
    pub fn decode(block: &[u8], nid: Nid, features: Features) -> Result<Inode, Damage> {
        Footer::decode_of(block, nid, nid)?;
        let damaged = |problem: String| Structure::Inode(nid).damage(None, problem);
        let mode = u16_at(block, at::MODE);
        let kind = FileKind::from_mode(mode.into())
            .ok_or_else(|| damaged(format!("its mode is {mode:#o}, which is no kind of file")))?;
        let name_len = u32_at(block, at::NAME_LEN) as usize;
        if name_len > NAME_MAX {
            return Err(damaged(format!("its name has {name_len} bytes")));
        }
        let inline = Inline::from_bits_retain(block[at::INLINE]);
        let extra = inline.contains(Inline::EXTRA_ATTR).then(|| Extra::decode(block, features)).transpose();
        let inode = Inode {
            mode,
            kind,
            advise: Advise::from_bits_retain(block[at::ADVISE]),
            inline,
            uid: u32_at(block, at::UID),
            gid: u32_at(block, at::GID),
            links: u32_at(block, at::LINKS),
            size: u64_at(block, at::SIZE),
            blocks: u64_at(block, at::BLOCKS),
            atime: time_at(block, at::ATIME),
            ctime: time_at(block, at::CTIME),
            mtime: time_at(block, at::MTIME),
            generation: u32_at(block, at::GENERATION),
            current_depth: u32_at(block, at::CURRENT_DEPTH),
            xattr_nid: Nid(u32_at(block, at::XATTR_NID)),
            flags: InodeFlags::from_bits_retain(u32_at(block, at::FLAGS)),
            pino: Nid(u32_at(block, at::PINO)),
            name: block[at::NAME..at::NAME + name_len].into(),
            dir_level: block[at::DIR_LEVEL],
            extra: extra.map_err(damaged)?,
        };
        inode.check(features.contains(Features::FLEXIBLE_INLINE_XATTR)).map_err(damaged)?;
        Ok(inode)
    }

    /// Checks the fields against each other.
    fn check(&self, flexible: bool) -> Result<(), String> {
        let layout = self.layout(flexible);
        if layout.inline_range().is_empty() {
            let words = layout.xattr_words();
            return Err(format!("its inline attributes take {words} words, which leaves no room for data"));
        }
        let directory = self.kind == FileKind::Directory;
        if self.inline.contains(Inline::DENTRY) && !directory {
            return Err(format!("it has inline entries, but is a {:?}", self.kind));
        }
        if directory && self.current_depth > super::dentry::DEPTH_MAX {
            return Err(format!("its hash table has {} levels", self.current_depth));
        }
        if self.inline.contains(Inline::DATA) {
            let room = layout.inline_range().len() as u64;
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
        put_u16(block, at::MODE, self.mode);
        block[at::ADVISE] = self.advise.bits();
        block[at::INLINE] = self.inline.bits();
        put_u32(block, at::UID, self.uid);
        put_u32(block, at::GID, self.gid);
        put_u32(block, at::LINKS, self.links);
        put_u64(block, at::SIZE, self.size);
        put_u64(block, at::BLOCKS, self.blocks);
        put_time(block, at::ATIME, self.atime);
        put_time(block, at::CTIME, self.ctime);
        put_time(block, at::MTIME, self.mtime);
        put_u32(block, at::GENERATION, self.generation);
        put_u32(block, at::CURRENT_DEPTH, self.current_depth);
        put_u32(block, at::XATTR_NID, self.xattr_nid.0);
        put_u32(block, at::FLAGS, self.flags.bits());
        put_u32(block, at::PINO, self.pino.0);
        put_u32(block, at::NAME_LEN, self.name.len() as u32);
        let field = &mut block[at::NAME..at::NAME + NAME_MAX];
        field.fill(0);
        field[..self.name.len()].copy_from_slice(&self.name);
        block[at::DIR_LEVEL] = self.dir_level;
        block[at::EXT].fill(0);
        if let Some(extra) = &self.extra {
            extra.encode_into(block);
        }
    }

    /// Returns the places of the parts of this inode; `flexible` if the volume has flexible inline
    /// attributes.
    pub fn layout(&self, flexible: bool) -> Layout {
        let extra = self.extra.as_ref().map(|extra| (extra.isize, extra.inline_xattr_words));
        Layout::from_fields(self.inline, extra, flexible)
    }
}

impl Extra {
    fn decode(block: &[u8], features: Features) -> Result<Extra, String> {
        let isize = u16_at(block, at::EXTRA_ISIZE);
        if !isize.is_multiple_of(4) || !(4..=EXTRA_ISIZE_MAX).contains(&isize) {
            return Err(format!("its extra area has {isize} bytes"));
        }
        let crtime = features.contains(Features::INODE_CRTIME) && isize >= COVERS_CRTIME;
        Ok(Extra {
            isize,
            inline_xattr_words: u16_at(block, at::INLINE_XATTR_WORDS),
            projid: if isize >= COVERS_PROJID { u32_at(block, at::PROJID) } else { 0 },
            crtime: crtime.then(|| time_at(block, at::CRTIME)),
        })
    }

    fn encode_into(&self, block: &mut [u8]) {
        put_u16(block, at::EXTRA_ISIZE, self.isize);
        put_u16(block, at::INLINE_XATTR_WORDS, self.inline_xattr_words);
        if self.isize >= COVERS_PROJID {
            put_u32(block, at::PROJID, self.projid);
        }
        if let (Some(crtime), COVERS_CRTIME..) = (self.crtime, self.isize) {
            put_time(block, at::CRTIME, crtime);
        }
    }
}

/// The places of addresses, extra area and attributes in an inode's shared words. It is valid for
/// any block: the claims of a damaged inode are cut to the words that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    extra_words: u16,
    xattr_words: u16,
}

impl Layout {
    /// Makes the layout of an inode with this many words of extra area and of inline attributes,
    /// each cut to the room that there is.
    pub fn new(extra_words: u16, xattr_words: u16) -> Layout {
        let extra_words = extra_words.min(EXTRA_ISIZE_MAX / 4);
        Layout { extra_words, xattr_words: xattr_words.min(ADDRS_PER_INODE as u16 - extra_words) }
    }

    /// Returns the layout of an inode's block; `flexible` if the volume has flexible inline
    /// attributes.
    pub fn of(block: &[u8], flexible: bool) -> Layout {
        let inline = Inline::from_bits_retain(block[at::INLINE]);
        let extra = inline
            .contains(Inline::EXTRA_ATTR)
            .then(|| (u16_at(block, at::EXTRA_ISIZE), u16_at(block, at::INLINE_XATTR_WORDS)));
        Layout::from_fields(inline, extra, flexible)
    }

    /// Makes a layout. `extra`: size of the extra area in bytes, and the words it gives to inline
    /// attributes.
    fn from_fields(inline: Inline, extra: Option<(u16, u16)>, flexible: bool) -> Layout {
        let xattr_words = match extra {
            Some((_, words)) if flexible => words,
            _ if inline.intersects(Inline::XATTR | Inline::DENTRY) => INLINE_XATTR_WORDS,
            _ => 0,
        };
        Layout::new(extra.map_or(0, |(isize, _)| isize / 4), xattr_words)
    }

    /// Returns the number of words of the extra area.
    pub fn extra_words(&self) -> u16 {
        self.extra_words
    }

    /// Returns the number of words of inline attributes.
    pub fn xattr_words(&self) -> u16 {
        self.xattr_words
    }

    /// Returns the number of addresses the inode can hold.
    pub fn addresses(&self) -> u32 {
        ADDRS_PER_INODE as u32 - u32::from(self.extra_words) - u32::from(self.xattr_words)
    }

    fn addr_offset(&self, slot: usize) -> Option<usize> {
        (slot < self.addresses() as usize).then(|| at::ADDRS + 4 * (usize::from(self.extra_words) + slot))
    }

    /// Returns the address in a slot, counted as summaries do: from the end of the extra area. No
    /// block beyond the last slot.
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

    /// Returns the range of all bytes that hold addresses.
    pub fn addr_range(&self) -> Range<usize> {
        let start = at::ADDRS + 4 * usize::from(self.extra_words);
        start..start + 4 * self.addresses() as usize
    }

    /// Returns the range of inline data or entries: behind one reserved word, which must be 0.
    pub fn inline_range(&self) -> Range<usize> {
        let Range { start, end } = self.addr_range();
        (start + 4).min(end)..end
    }

    /// Returns the range of inline attributes.
    pub fn inline_xattr_range(&self) -> Range<usize> {
        at::NIDS - 4 * usize::from(self.xattr_words)..at::NIDS
    }

    /// Returns the major and minor number of a device node.
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

/// Returns the type of file that `i_mode` of an inode's block tells; `None` for a mode of no type.
pub fn kind(block: &[u8]) -> Option<FileKind> {
    FileKind::from_mode(u16_at(block, at::MODE).into())
}

/// Returns `i_size` of an inode's block, in bytes.
pub fn size(block: &[u8]) -> u64 {
    u64_at(block, at::SIZE)
}

/// Sets `i_size` of an inode's block.
pub fn set_size(block: &mut [u8], bytes: u64) {
    put_u64(block, at::SIZE, bytes);
}

/// Returns `i_blocks` of an inode's block: see [`Inode::blocks`].
pub fn blocks(block: &[u8]) -> u64 {
    u64_at(block, at::BLOCKS)
}

/// Returns `st_blocks` of an inode's block: 512-byte units. As in other file systems the inode itself does not count;
/// data and entries that lie in it do.
pub fn stat_sectors(block: &[u8]) -> u64 {
    let inline = Inline::from_bits_retain(block[at::INLINE]);
    let is_file = kind(block) == Some(FileKind::Regular);
    let has_contents = inline.contains(Inline::DENTRY) || is_file && inline.contains(Inline::DATA);
    let inside = if has_contents { size(block).div_ceil(512) } else { 0 };
    blocks(block).saturating_sub(1).saturating_mul(8).saturating_add(inside)
}

/// Returns `i_advise` of an inode's block.
pub fn advise(block: &[u8]) -> Advise {
    Advise::from_bits_retain(block[at::ADVISE])
}

/// Returns `i_generation` of the inode in a block.
pub fn generation(block: &[u8]) -> u32 {
    u32_at(block, at::GENERATION)
}

/// Sets `i_blocks` of an inode's block.
pub fn set_blocks(block: &mut [u8], blocks: u64) {
    put_u64(block, at::BLOCKS, blocks);
}

/// Returns one of the inode's node ids; none beyond the last slot.
pub fn nid_slot(block: &[u8], slot: usize) -> Nid {
    if slot < NIDS_PER_INODE { Nid(u32_at(block, at::NIDS + 4 * slot)) } else { Nid::NONE }
}

/// Sets one of the inode's node ids.
///
/// # Panics
/// If there is no such slot.
pub fn set_nid_slot(block: &mut [u8], slot: usize, nid: Nid) {
    assert!(slot < NIDS_PER_INODE, "node id {slot} of an inode");
    put_u32(block, at::NIDS + 4 * slot, nid.0);
}

/// Removes blocks, other nodes and the cached extent from an inode's block. Inline contents and
/// attributes stay.
pub fn strip(block: &mut [u8], flexible: bool) {
    let inline = Inline::from_bits_retain(block[at::INLINE]);
    if !inline.intersects(Inline::DATA | Inline::DENTRY) {
        let addresses = Layout::of(block, flexible).addr_range();
        block[addresses].fill(0);
    }
    (0..NIDS_PER_INODE).for_each(|slot| set_nid_slot(block, slot, Nid::NONE));
    put_u32(block, at::XATTR_NID, 0);
    set_blocks(block, 1);
    drop_extent(block);
}

/// The cached extent of an inode's block: a run of file blocks that lies in a run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedExtent {
    /// Its first file block.
    pub lbn: u32,
    /// The block of the volume in which the run starts.
    pub addr: BlkAddr,
    /// The length of the run in blocks.
    pub blocks: u32,
}

/// Returns the cached extent, if there is one.
pub fn cached_extent(block: &[u8]) -> Option<CachedExtent> {
    let word = |index: usize| u32_at(block, at::EXT.start + 4 * index);
    let extent = CachedExtent { lbn: word(0), addr: BlkAddr(word(1)), blocks: word(2) };
    (extent.blocks > 0).then_some(extent)
}

/// Forgets the cached extent: addresses have changed since it was right.
pub fn drop_extent(block: &mut [u8]) {
    block[at::EXT].fill(0);
}

/// True if an inode of a volume with inode checksums carries one.
pub fn has_checksum(block: &[u8]) -> bool {
    Inline::from_bits_retain(block[at::INLINE]).contains(Inline::EXTRA_ATTR)
        && u16_at(block, at::EXTRA_ISIZE) >= COVERS_CHECKSUM
}

/// Returns the checksum that an inode's block should carry. It covers the footer.
pub fn checksum(block: &[u8], uuid: &[u8; 16]) -> u32 {
    let ino = Footer::decode(block).ino.0.to_le_bytes();
    [
        &uuid[..],
        &ino,
        &block[at::GENERATION..at::CURRENT_DEPTH],
        &block[..at::CHECKSUM.start],
        &[0; 4],
        &block[at::CHECKSUM.end..BLOCK],
    ]
    .into_iter()
    .fold(u32::MAX, crc32)
}

/// Writes the checksum of an inode that carries one: the last thing before the block is written.
pub fn seal_checksum(block: &mut [u8], uuid: &[u8; 16]) {
    if has_checksum(block) {
        let sum = checksum(block, uuid);
        put_u32(block, at::CHECKSUM.start, sum);
    }
}

/// Checks the checksum of an inode that carries one, on a volume with these features. Without the feature an inode may
/// have room for a checksum, which is then empty.
///
/// # Errors
/// The stored and the computed checksum, in words.
pub fn verify_checksum(block: &[u8], uuid: &[u8; 16], features: Features) -> Result<(), String> {
    if !features.contains(Features::INODE_CHECKSUM) {
        return Ok(());
    }
    let (stored, right) = (u32_at(block, at::CHECKSUM.start), checksum(block, uuid));
    if has_checksum(block) && stored != right {
        return Err(format!("its checksum is {stored:#010x}, its bytes have {right:#010x}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: Features = Features::IN_EXTRA_AREA.union(Features::EXTRA_ATTR);
    const UUID: [u8; 16] = [7; 16];

    fn footer_of(nid: u32) -> Footer {
        let nid = Nid(nid);
        let (cold, next) = (true, BlkAddr(4711));
        Footer { nid, ino: nid, cold, fsync: false, dentry: false, offset: 0, cp_version: 1, next }
    }

    fn plain(kind: FileKind) -> Inode {
        let time = Timestamp::new(1_700_000_000, 5);
        Inode {
            mode: kind.mode_bits() as u16 | 0o644,
            kind,
            advise: Advise::empty(),
            inline: Inline::XATTR,
            uid: 1,
            gid: 2,
            links: 1,
            size: 9,
            blocks: 1,
            atime: time,
            ctime: time,
            mtime: time,
            generation: 3,
            current_depth: 0,
            xattr_nid: Nid::NONE,
            flags: InodeFlags::empty(),
            pino: Nid::ROOT,
            name: (*b"name").into(),
            dir_level: 0,
            extra: None,
        }
    }

    fn block_of(inode: &Inode) -> Vec<u8> {
        let mut block = super::super::node::blank(&footer_of(5));
        inode.encode_into(&mut block);
        block
    }

    fn decoded(block: &[u8]) -> Result<Inode, String> {
        Inode::decode(block, Nid(5), ALL).map_err(|damage| damage.problem)
    }

    #[test]
    fn layouts_are_those_of_the_format() {
        for (extra_words, xattr_words, room) in [(0, 50, 3488), (6, 50, 3464), (9, 50, 3452), (0, 0, 3688)] {
            let layout = Layout::new(extra_words, xattr_words);
            assert_eq!(layout.inline_range().len(), room);
            assert_eq!(layout.addresses(), 923 - u32::from(extra_words) - u32::from(xattr_words));
            assert_eq!(layout.inline_range().end, layout.inline_xattr_range().start);
            assert_eq!(layout.inline_xattr_range().end, 4052);
            assert_eq!(layout.addr_range().start, 360 + 4 * usize::from(extra_words));
        }
    }

    #[test]
    fn inline_entries_reserve_room_for_attributes() {
        let mut inode = plain(FileKind::Directory);
        inode.inline = Inline::DENTRY;
        assert_eq!(inode.layout(false).xattr_words(), 50);
        inode.inline = Inline::EXTRA_ATTR | Inline::XATTR;
        inode.extra = Some(Extra { isize: 24, inline_xattr_words: 7, projid: 0, crtime: None });
        assert_eq!(inode.layout(true), Layout::new(6, 7));
        assert_eq!(inode.layout(false), Layout::new(6, 50));
        assert_eq!(Layout::of(&block_of(&inode), true), Layout::new(6, 7));
    }

    #[test]
    fn slots_count_from_the_end_of_the_extra_area() {
        let mut block = vec![0; BLOCK];
        let layout = Layout::new(6, 50);
        layout.set_addr(&mut block, 0, BlkAddr(11));
        layout.set_addr(&mut block, 866, BlkAddr(12));
        assert_eq!((u32_at(&block, 360 + 24), u32_at(&block, 4052 - 204)), (11, 12));
        assert_eq!((layout.addr(&block, 866), layout.addr(&block, 867)), (BlkAddr(12), BlkAddr::NULL));
        set_nid_slot(&mut block, 4, Nid(13));
        assert_eq!((u32_at(&block, 4068), nid_slot(&block, 4), nid_slot(&block, 5)), (13, Nid(13), Nid::NONE));
    }

    #[test]
    fn device_numbers_take_the_old_form_where_it_suffices() {
        let mut block = vec![0; BLOCK];
        let layout = Layout::new(0, 50);
        for (major, minor, words) in [(8, 1, (0x801, 0)), (255, 255, (0xFFFF, 0)), (259, 300, (0, 0x0011_032C))] {
            layout.set_device(&mut block, major, minor);
            assert_eq!((layout.addr(&block, 0).0, layout.addr(&block, 1).0), words);
            assert_eq!(layout.device(&block), (major, minor));
        }
        layout.set_device(&mut block, 0xFFF, 0xF_FFFF);
        assert_eq!(layout.device(&block), (0xFFF, 0xF_FFFF));
    }

    #[test]
    fn impossible_inodes_are_refused() {
        let good = block_of(&plain(FileKind::Regular));
        let refused = |change: fn(&mut [u8])| {
            let mut block = good.clone();
            change(&mut block);
            decoded(&block).unwrap_err()
        };
        assert_eq!(refused(|b| put_u16(b, 0, 0o644)), "its mode is 0o644, which is no kind of file");
        assert_eq!(refused(|b| put_u32(b, 88, 256)), "its name has 256 bytes");
        assert_eq!(refused(|b| put_u64(b, 16, 1 << 50)), "it has 1125899906842624 bytes, more than any file can have");
        assert_eq!(refused(|b| b[3] |= 0x04), "it has inline entries, but is a Regular");
        let problem = refused(|b| {
            b[3] |= 0x02;
            put_u64(b, 16, 3489);
        });
        assert_eq!(problem, "it has inline data of 3489 bytes in the room for 3488");
        for isize in [0, 3, 6, 40] {
            let mut block = good.clone();
            block[3] |= 0x20;
            put_u16(&mut block, 360, isize);
            assert_eq!(decoded(&block).unwrap_err(), format!("its extra area has {isize} bytes"));
        }
        let problem = refused(|b| {
            b[3] |= 0x20;
            put_u16(b, 360, 36);
            put_u16(b, 362, 913);
        });
        assert_eq!(problem, "its inline attributes take 913 words, which leaves no room for data");
        assert!(Inode::decode(&good, Nid(6), ALL).is_err());
        let mut directory = plain(FileKind::Directory);
        directory.current_depth = 64;
        assert_eq!(decoded(&block_of(&directory)).unwrap_err(), "its hash table has 64 levels");
    }

    #[test]
    fn checksums_cover_everything_but_themselves() {
        let mut inode = plain(FileKind::Regular);
        inode.inline |= Inline::EXTRA_ATTR;
        inode.extra = Some(Extra { isize: 12, inline_xattr_words: 50, projid: 0, crtime: None });
        let mut block = block_of(&inode);
        assert!(verify_checksum(&block, &UUID, ALL).is_err());
        seal_checksum(&mut block, &UUID);
        assert_eq!(verify_checksum(&block, &UUID, ALL), Ok(()));
        assert!(verify_checksum(&block, &[8; 16], ALL).is_err());
        for at in [0, 68, 367, 372, 4051, 4076, 4095] {
            block[at] ^= 0x40;
            assert!(verify_checksum(&block, &UUID, ALL).is_err(), "byte {at}");
            block[at] ^= 0x40;
        }
        put_u16(&mut block, 360, 8);
        let without = block.clone();
        seal_checksum(&mut block, &UUID);
        assert_eq!((verify_checksum(&block, &UUID, ALL), block == without), (Ok(()), true));
    }

    fn any_kind() -> impl Strategy<Value = FileKind> {
        use FileKind::{BlockDevice, CharDevice, Directory, Fifo, Regular, Socket, Symlink};
        prop::sample::select(vec![Regular, Directory, Symlink, CharDevice, BlockDevice, Fifo, Socket])
    }

    fn any_time() -> impl Strategy<Value = Timestamp> {
        (any::<i64>(), 0u32..1_000_000_000).prop_map(|(secs, nanos)| Timestamp::new(secs, nanos))
    }

    fn any_extra() -> impl Strategy<Value = Option<Extra>> {
        let some = (1u16..=9, 0u16..800, any::<u32>(), any_time());
        prop::option::of(some.prop_map(|(words, inline_xattr_words, projid, crtime)| {
            let isize = words * 4;
            let projid = if isize >= COVERS_PROJID { projid } else { 0 };
            Extra { isize, inline_xattr_words, projid, crtime: (isize >= COVERS_CRTIME).then_some(crtime) }
        }))
    }

    fn any_inode() -> impl Strategy<Value = Inode> {
        let bytes = (any::<u16>(), any::<u8>(), any::<u8>(), any::<u8>());
        let numbers = any::<[u32; 7]>();
        let sizes = (0u64..1 << 41, any::<u64>(), 0u32..64);
        let times = (any_time(), any_time(), any_time());
        let name = prop::collection::vec(any::<u8>(), 0..=255);
        (any_kind(), bytes, numbers, sizes, times, name, any_extra()).prop_map(
            |(kind, (permissions, advise, inline, dir_level), n, (size, blocks, depth), times, name, extra)| {
                let inside = Inline::DATA | Inline::DENTRY | Inline::EXTRA_ATTR;
                let mut inline = Inline::from_bits_retain(inline) - inside;
                inline.set(Inline::EXTRA_ATTR, extra.is_some());
                Inode {
                    mode: kind.mode_bits() as u16 | permissions & 0o7777,
                    kind,
                    advise: Advise::from_bits_retain(advise),
                    inline,
                    uid: n[0],
                    gid: n[1],
                    links: n[2],
                    size,
                    blocks,
                    atime: times.0,
                    ctime: times.1,
                    mtime: times.2,
                    generation: n[3],
                    current_depth: depth,
                    xattr_nid: Nid(n[4]),
                    flags: InodeFlags::from_bits_retain(n[5]),
                    pino: Nid(n[6]),
                    name: name.into(),
                    dir_level,
                    extra,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn inodes_survive_a_round_trip(inode in any_inode(), junk: u8) {
            let mut block = vec![junk; BLOCK];
            footer_of(5).encode_into(&mut block);
            inode.encode_into(&mut block);
            prop_assert_eq!(Inode::decode(&block, Nid(5), ALL).unwrap(), inode.clone());
            prop_assert_eq!(Layout::of(&block, true), inode.layout(true));
            let behind = if inode.extra.is_some() { 396 } else { 360 };
            prop_assert!(block[behind..4072].iter().all(|&byte| byte == junk));
            prop_assert!(block[348..360].iter().all(|&byte| byte == 0));
        }

        #[test]
        fn hostile_blocks_never_panic(
            seed in prop::collection::vec(prop_oneof![Just(0u8), Just(0xFF), any::<u8>()], 131),
            (mode, inline, isize, words) in any::<(u16, u8, u16, u16)>(), flexible: bool, slot in 0usize..2000,
        ) {
            let mut block: Vec<u8> = seed.iter().copied().cycle().take(BLOCK).collect();
            footer_of(5).encode_into(&mut block);
            put_u16(&mut block, 0, mode);
            block[3] = inline;
            put_u16(&mut block, 360, isize % 48);
            put_u16(&mut block, 362, words);
            let layout = Layout::of(&block, flexible);
            prop_assert!(layout.addr_range().end <= at::NIDS && layout.inline_range().end <= at::NIDS);
            prop_assert!(layout.inline_range().start <= layout.inline_range().end);
            let _ = (layout.addr(&block, slot), layout.device(&block), nid_slot(&block, slot));
            let _ = super::super::dentry::Region::inline(layout.inline_range());
            let _ = verify_checksum(&block, &UUID, ALL);
            if let Ok(inode) = Inode::decode(&block, Nid(5), ALL) {
                prop_assert!(inode.layout(true).addresses() > 1);
                inode.encode_into(&mut block);
                prop_assert_eq!(Inode::decode(&block, Nid(5), ALL).unwrap(), inode);
            }
        }
    }
}
