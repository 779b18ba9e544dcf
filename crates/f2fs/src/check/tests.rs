//! Sound volumes are clean, each damage is found by its name, and no image makes the checker panic.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use moafs_disk::mem::MemDisk;
use moafs_disk::probe::trace::Trace;
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::api::NewFile;
use moafs_vfs::types::{FileKind, Ino, SetMode};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::format::checkpoint::{CpFlags, Pack};
use crate::format::crc::{MAGIC, crc32};
use crate::format::dentry::{self, Region};
use crate::format::inode::{self, Layout};
use crate::format::nat::{self, NAT_PER_BLOCK, NatEntry};
use crate::format::node::Footer;
use crate::format::sit::{SIT_PER_BLOCK, SitEntry};
use crate::format::superblock::{Features, Geometry, Superblock};
use crate::format::{BLOCK, BlkAddr, Log, Nid, Segno, put_u16, put_u32, u16_at, u32_at, u64_at};
use crate::judge::{self, name};
use crate::mkfs::{MkfsOptions, mkfs};

/// The inodes of the golden volume, in the order of their making.
const DIR: Nid = Nid(4);
const SUB: Nid = Nid(5);
const FILE: Nid = Nid(6);
const OTHER: Nid = Nid(7);
const BIG: Nid = Nid(8);
const FAST_LINK: Nid = Nid(9);
const SLOW_LINK: Nid = Nid(10);
const PIPE: Nid = Nid(11);
const DEVICE: Nid = Nid(12);
const MANY: Nid = Nid(13);
/// A node id that is not in use.
const FREE: Nid = Nid(400);
/// File blocks of `BIG`: a run that fills a segment, one below a direct node, one below an indirect one.
const BIG_RUN: usize = 700;
const BIG_DIRECT: u64 = 900;
const BIG_INDIRECT: u64 = 3000;

fn features() -> Features {
    judge::features()[0]
}

/// Makes a volume with a bit of everything.
fn populate(disk: &Arc<MemDisk>) {
    let vfs = judge::mount(disk);
    let who = judge::root();
    let make = |dir: Nid, text: &str, kind: FileKind, target: Option<&[u8]>| {
        let device = libc::makedev(8, 1);
        let new = NewFile { rdev: if kind == FileKind::BlockDevice { device } else { 0 }, target, ..judge::new(kind) };
        let stat = vfs.create(&who, Ino(dir.0.into()), name(text.as_bytes()), &new).unwrap();
        vfs.forget(stat.ino, 1);
        Nid(stat.ino.0 as u32)
    };
    let slow = [b'l'; 4000];
    let made = [
        make(Nid::ROOT, "dir", FileKind::Directory, None),
        make(DIR, "sub", FileKind::Directory, None),
        make(Nid::ROOT, "file", FileKind::Regular, None),
        make(DIR, "other", FileKind::Regular, None),
        make(Nid::ROOT, "big", FileKind::Regular, None),
        make(DIR, "fast", FileKind::Symlink, Some(b"target")),
        make(DIR, "slow", FileKind::Symlink, Some(&slow)),
        make(DIR, "pipe", FileKind::Fifo, None),
        make(DIR, "device", FileKind::BlockDevice, None),
        make(Nid::ROOT, "many", FileKind::Directory, None),
    ];
    assert_eq!(made, [DIR, SUB, FILE, OTHER, BIG, FAST_LINK, SLOW_LINK, PIPE, DEVICE, MANY]);
    let ino = |nid: Nid| Ino(nid.0.into());
    for index in 0..700 {
        vfs.link(&who, ino(OTHER), ino(MANY), name(format!("a-name-of-some-length-{index}").as_bytes())).unwrap();
        vfs.forget(ino(OTHER), 1);
    }
    let write = |nid: Nid, lbn: u64, blocks: usize| {
        let data = vec![nid.0 as u8; blocks * BLOCK];
        vfs.write(&who, ino(nid), lbn * BLOCK as u64, &data, false).unwrap();
    };
    write(FILE, 0, 3);
    write(OTHER, 0, 1);
    write(BIG, 0, BIG_RUN);
    write(BIG, BIG_DIRECT, 1);
    write(BIG, BIG_INDIRECT, 1);
    vfs.set_xattr(&who, ino(FILE), b"user.small", b"value", SetMode::Any).unwrap();
    vfs.set_xattr(&who, ino(OTHER), b"user.large", &[b'v'; 1000], SetMode::Any).unwrap();
    vfs.close().unwrap();
}

/// Returns the volume as the engine left it.
fn written() -> MemDisk {
    static WRITTEN: OnceLock<Arc<MemDisk>> = OnceLock::new();
    let make = || {
        let disk = judge::volume(64, features());
        populate(&disk);
        judge::assert_clean(&disk, "the golden volume");
        disk
    };
    WRITTEN.get_or_init(make).snapshot()
}

/// Returns the same volume, with everything of its journals in the tables, so that it can be
/// damaged there.
fn golden() -> MemDisk {
    static GOLDEN: OnceLock<MemDisk> = OnceLock::new();
    let make = || {
        let disk = written();
        let lab = Lab { disk: &disk };
        let checker = lab.checker();
        let (nat, sit) = (checker.pack.nat_journal.clone(), checker.pack.sit_journal.clone());
        lab.pack(|pack| {
            pack.nat_journal.clear();
            pack.sit_journal.clear();
        });
        nat.iter().for_each(|(nid, newer)| lab.nat(*nid, |entry| *entry = *newer));
        sit.iter().for_each(|(segno, newer)| lab.sit_bytes(*segno, |bytes| newer.encode(bytes)));
        disk
    };
    GOLDEN.get_or_init(make).snapshot()
}

fn run(disk: &MemDisk) -> Outcome {
    check(disk, &CheckOptions::default(), &mut |_| ()).unwrap()
}

/// Returns the issues' names as their serialized form has them; several of one name in a row count
/// as one.
fn names(outcome: &Outcome) -> Vec<String> {
    let name = |finding: &Finding| serde_json::to_value(finding).unwrap()["issue"].as_str().unwrap().to_owned();
    let mut names: Vec<String> = outcome.findings.iter().map(name).collect();
    names.dedup();
    names
}

/// Access to a volume's structures, to damage them.
struct Lab<'a> {
    disk: &'a MemDisk,
}

impl Lab<'_> {
    /// Returns a checker that has read the tables.
    fn checker(&self) -> Checker<'_> {
        let mut checker = Checker::open(self.disk).unwrap().unwrap();
        checker.read_tables(&mut |_, _, _| ()).unwrap();
        checker
    }

    fn geo(&self) -> Geometry {
        Checker::open(self.disk).unwrap().unwrap().geo
    }

    fn block(&self, block: BlkAddr, change: impl FnOnce(&mut [u8])) {
        let mut bytes = vec![0; BLOCK];
        self.disk.peek(u64::from(block.0) * BLOCK as u64, &mut bytes);
        change(&mut bytes);
        self.disk.poke(u64::from(block.0) * BLOCK as u64, &bytes);
    }

    fn read(&self, block: BlkAddr) -> Vec<u8> {
        let mut copy = Vec::new();
        self.block(block, |bytes| copy = bytes.to_vec());
        copy
    }

    fn place(&self, nid: Nid) -> BlkAddr {
        self.checker().nat.get(nid).addr
    }

    /// Changes a node's block.
    fn node(&self, nid: Nid, change: impl FnOnce(&mut [u8])) {
        self.block(self.place(nid), change);
    }

    /// Changes an inode, and its checksum with it.
    fn inode(&self, ino: Nid, change: impl FnOnce(&mut [u8])) {
        let uuid = Checker::open(self.disk).unwrap().unwrap().superblock.uuid;
        self.node(ino, |bytes| {
            change(bytes);
            inode::seal_checksum(bytes, &uuid);
        });
    }

    fn layout(&self, ino: Nid) -> Layout {
        Layout::of(&self.read(self.place(ino)), true)
    }

    /// Returns the address of one of the file blocks that the inode itself leads to.
    fn addr(&self, ino: Nid, slot: usize) -> BlkAddr {
        self.layout(ino).addr(&self.read(self.place(ino)), slot)
    }

    fn set_addr(&self, ino: Nid, slot: usize, addr: BlkAddr) {
        let layout = self.layout(ino);
        self.inode(ino, |bytes| layout.set_addr(bytes, slot, addr));
    }

    /// Changes the number of words that an inode keeps for attributes.
    fn set_xattr_words(&self, ino: Nid, words: u16) {
        self.inode(ino, |bytes| {
            assert!(bytes[3] & 1 != 0, "it is marked to have some");
            put_u16(bytes, 362, words);
        });
    }

    fn nid_slot(&self, ino: Nid, slot: usize) -> Nid {
        inode::nid_slot(&self.read(self.place(ino)), slot)
    }

    fn xattr_nid(&self, ino: Nid) -> Nid {
        Nid(u32_at(&self.read(self.place(ino)), 76))
    }

    /// Changes the newest pack, and writes it where it was.
    fn pack(&self, change: impl FnOnce(&mut Pack)) {
        let checker = Checker::open(self.disk).unwrap().unwrap();
        let (geo, mut pack) = (checker.geo, checker.pack);
        let at = geo.pack_at(self.newest());
        change(&mut pack);
        self.disk.poke(u64::from(at.0) * BLOCK as u64, &pack.encode(&geo));
    }

    /// Writes a changed copy of a node where the chain of fsynced nodes starts. It names `next` as the next block.
    fn chain(&self, nid: Nid, next: BlkAddr, change: impl FnOnce(&mut [u8])) {
        let (segno, offset) = self.current(Log::WarmNode);
        let cp_version = self.checker().pack.checkpoint.node_version();
        let node = self.read(self.place(nid));
        self.block(self.geo().block_of(segno, offset), |bytes| {
            bytes.copy_from_slice(&node);
            change(bytes);
            Footer { cp_version, next, fsync: true, ..Footer::decode(bytes) }.encode_into(bytes);
        });
    }

    /// Changes both copies of the superblock.
    fn superblock(&self, change: impl FnOnce(&mut Superblock)) {
        let mut superblock = Checker::open(self.disk).unwrap().unwrap().superblock;
        change(&mut superblock);
        [0, 1].into_iter().for_each(|copy| self.disk.poke(copy * BLOCK as u64, &*superblock.encode()));
    }

    /// Returns the number of the newest pack (0 or 1).
    fn newest(&self) -> u32 {
        let checker = Checker::open(self.disk).unwrap().unwrap();
        let version = |pack: u32| u64_at(&self.read(checker.geo.pack_at(pack)), 0);
        u32::from(version(0) != checker.pack.checkpoint.version)
    }

    fn nat(&self, nid: Nid, change: impl FnOnce(&mut NatEntry)) {
        let checker = self.checker();
        let (block, index) = (nid.0 / NAT_PER_BLOCK as u32, nid.0 as usize % NAT_PER_BLOCK);
        let at = checker.geo.nat_at(block, checker.pack.checkpoint.nat_bitmap.get(block as usize));
        self.block(at, |bytes| {
            let mut entry = nat::entry(bytes, index);
            change(&mut entry);
            nat::set_entry(bytes, index, entry);
        });
    }

    fn sit_bytes(&self, segno: Segno, change: impl FnOnce(&mut [u8])) {
        let checker = self.checker();
        let (block, index) = (segno.0 / SIT_PER_BLOCK as u32, segno.0 as usize % SIT_PER_BLOCK);
        let at = checker.geo.sit_at(block, checker.pack.checkpoint.sit_bitmap.get(block as usize));
        self.block(at, |bytes| change(&mut bytes[index * 74..(index + 1) * 74]));
    }

    fn sit_entry(&self, segno: Segno) -> SitEntry {
        let mut entry = None;
        self.sit_bytes(segno, |bytes| entry = SitEntry::decode(bytes, segno).ok());
        entry.expect("the entry is sound")
    }

    fn sit(&self, segno: Segno, change: impl FnOnce(&mut SitEntry)) {
        self.sit_bytes(segno, |bytes| {
            let mut entry = SitEntry::decode(bytes, segno).unwrap();
            change(&mut entry);
            entry.encode(bytes);
        });
    }

    /// Returns the segment and the block in it at which a log stands.
    fn current(&self, log: Log) -> (Segno, usize) {
        let current = self.checker().pack.checkpoint.current[log as usize];
        (current.segno, current.offset.into())
    }

    /// Returns a segment of data that is full and closed: the one with the run of `BIG`.
    fn closed(&self) -> Segno {
        let checker = self.checker();
        let current = checker.pack.checkpoint.current.map(|current| current.segno);
        let closed = checker.segments.iter().find(|(segno, segment)| {
            segment.log == Some(Log::WarmData) && !segment.valid.is_empty() && !current.contains(segno)
        });
        *closed.expect("the run fills a segment").0
    }

    /// Changes a directory's entries: those inside its inode, or its first block that holds `text`.
    fn entries(&self, directory: Nid, text: &str, change: impl FnOnce(&mut [u8], &Region, usize)) {
        let (text, hash) = (text.as_bytes(), dentry::hash(text.as_bytes()));
        let bytes = self.read(self.place(directory));
        let region = Region::inline(self.layout(directory).inline_range());
        if bytes[3] & 4 != 0 {
            let slot = dentry::find(&bytes, &region, hash, text).unwrap().expect("the name exists").slot;
            return self.inode(directory, |bytes| change(bytes, &region, slot));
        }
        for slot in 0..self.layout(directory).addresses() as usize {
            let block = self.addr(directory, slot);
            if !block.is_real() {
                continue;
            }
            if let Some(entry) = dentry::find(&self.read(block), &Region::BLOCK, hash, text).unwrap() {
                return self.block(block, |bytes| change(bytes, &Region::BLOCK, entry.slot));
            }
        }
        panic!("there is no {text:?}");
    }

    /// Changes the dentry of a name: hash, inode, length, type.
    fn dentry(&self, directory: Nid, text: &str, change: impl FnOnce(&mut [u8])) {
        self.entries(directory, text, |bytes, region, slot| {
            let at = region.dentries + slot * 11;
            change(&mut bytes[at..at + 11]);
        });
    }
}

type Damage = fn(&Lab<'_>);

/// The expected result of `fsck.f2fs` for the same damage: it complains, or it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Theirs {
    Sees,
    Misses,
}
use Theirs::{Misses, Sees};

/// One damage and the issues it must cause, in their order. What follows from the damage is part of the list.
const DAMAGES: &[(&str, Damage, &[&str], Theirs)] = &[
    ("superblock copy 0", |lab| lab.block(BlkAddr(0), |b| b.fill(0)), &["superblock_damaged"], Misses),
    ("superblock copy 1", |lab| lab.block(BlkAddr(1), |b| b[1024 + 92] ^= 1), &["superblock_damaged"], Misses),
    ("label of one copy", |lab| lab.block(BlkAddr(1), |b| b[1024 + 124] = b'x'), &["superblocks_differ"], Misses),
    (
        "segment_count of one copy beyond its blocks",
        |lab| lab.block(BlkAddr(0), |b| put_u32(b, 1024 + 48, u32::MAX)),
        &["superblock_damaged"],
        Misses,
    ),
    (
        "segment_count of one copy, one less",
        |lab| lab.block(BlkAddr(1), |b| put_u32(b, 1024 + 48, u32_at(b, 1024 + 48) - 1)),
        &["superblock_damaged"],
        Misses,
    ),
    (
        "rsvd_segment_count of all segments",
        |lab| lab.pack(|pack| pack.checkpoint.reserved_segments = lab.geo().segment_count),
        &["reserved_segments"],
        Sees,
    ),
    ("marked", |lab| lab.pack(|pack| pack.checkpoint.flags |= CpFlags::FSCK), &["marked"], Misses),
    ("next free node", |lab| lab.pack(|pack| pack.checkpoint.next_free_nid = u32::MAX), &["next_free_nid"], Misses),
    ("count of blocks", |lab| lab.pack(|pack| pack.checkpoint.valid_blocks += 1), &["count"], Sees),
    ("count of nodes", |lab| lab.pack(|pack| pack.checkpoint.valid_nodes += 1), &["count"], Sees),
    ("count of inodes", |lab| lab.pack(|pack| pack.checkpoint.valid_inodes -= 1), &["count"], Sees),
    ("count of free segments", |lab| lab.pack(|pack| pack.checkpoint.free_segments -= 1), &["count"], Sees),
    (
        "block marked used but not in use",
        |lab| {
            lab.set_addr(FILE, 2, BlkAddr::NULL);
            lab.inode(FILE, |bytes| inode::set_blocks(bytes, inode::blocks(bytes) - 1));
            lab.pack(|pack| pack.checkpoint.valid_blocks -= 1);
        },
        &["leaked"],
        Sees,
    ),
    (
        "used block marked free",
        |lab| {
            let (segno, offset) = lab.geo().segment_of(lab.addr(FILE, 1)).unwrap();
            lab.sit(segno, |entry| entry.map.clear(offset));
        },
        &["used_but_free"],
        Sees,
    ),
    (
        "segment's count",
        |lab| lab.sit_bytes(lab.closed(), |bytes| put_u16(bytes, 0, u16_at(bytes, 0) - 1)),
        &["sit_entry"],
        Sees,
    ),
    (
        "type of an open segment",
        |lab| lab.sit(lab.current(Log::ColdData).0, |entry| entry.log = Log::HotData),
        &["current_type"],
        Sees,
    ),
    (
        "data in a segment of nodes",
        |lab| lab.sit(lab.closed(), |entry| entry.log = Log::ColdNode),
        &["segment_class"],
        Sees,
    ),
    (
        "another temperature",
        |lab| lab.sit(lab.current(Log::WarmNode).0, |entry| entry.log = Log::HotNode),
        &["current_type", "temperature"],
        Sees,
    ),
    (
        "log at a used block",
        |lab| lab.pack(|pack| pack.checkpoint.current[Log::HotNode as usize].offset -= 1),
        &["current_used"],
        Sees,
    ),
    (
        "chain with an address outside the main area",
        |lab| {
            let layout = lab.layout(FILE);
            lab.chain(FILE, BlkAddr::NULL, |bytes| layout.set_addr(bytes, 0, BlkAddr(7)));
        },
        &["chain_node"],
        Misses,
    ),
    (
        "chain with an inode that is none",
        |lab| lab.chain(FILE, BlkAddr::NULL, |bytes| put_u16(bytes, 0, 0)),
        &["chain_node"],
        Misses,
    ),
    (
        "chain in a circle",
        |lab| {
            let (segno, offset) = lab.current(Log::WarmNode);
            lab.chain(FILE, lab.geo().block_of(segno, offset), |_| ());
        },
        &["chain"],
        Misses,
    ),
    (
        "reserve as large as the main area",
        |lab| {
            let segments = lab.geo().segments;
            lab.pack(|pack| pack.checkpoint.reserved_segments = segments);
        },
        &["reserved_segments"],
        Sees,
    ),
    (
        "quota file that is free",
        |lab| lab.superblock(|superblock| superblock.qf_ino[0] = FREE.0),
        &["quota_inode"],
        Sees,
    ),
    (
        "quota file that is a directory",
        |lab| lab.superblock(|superblock| superblock.qf_ino[2] = Nid::ROOT.0),
        &["quota_inode"],
        Sees,
    ),
    ("address of node 0", |lab| lab.nat(Nid::NONE, |entry| entry.addr = BlkAddr(1)), &["nat_zero"], Sees),
    (
        "entry that the journal replaces",
        |lab| {
            let segment = lab.closed();
            let newer = lab.sit_entry(segment);
            lab.pack(|pack| pack.sit_journal.push((segment, newer)));
            lab.sit_bytes(segment, |bytes| put_u16(bytes, 0, u16_at(bytes, 0) - 1));
        },
        &["sit_superseded"],
        Sees,
    ),
    (
        "entry that the journal replaces",
        |lab| {
            let newer = lab.checker().nat.get(FILE);
            lab.pack(|pack| pack.nat_journal.push((FILE, newer)));
            lab.nat(FILE, |entry| entry.ino = Nid::NONE);
        },
        &["nat_superseded"],
        Sees,
    ),
    ("entry of the meta inode", |lab| lab.nat(Nid(2), |entry| entry.ino = Nid(9)), &["nat_reserved"], Misses),
    ("node's address", |lab| lab.nat(PIPE, |entry| entry.addr = BlkAddr(5)), &["nat_address", "leaked", "count"], Sees),
    (
        "node's inode",
        |lab| lab.nat(lab.xattr_nid(OTHER), |entry| entry.ino = FILE),
        &["node_pointer", "blocks_count", "node_unreachable", "node_footer", "leaked", "count"],
        Sees,
    ),
    ("node's version", |lab| lab.nat(FILE, |entry| entry.version ^= 1), &["summary"], Sees),
    (
        "footer's node id",
        |lab| lab.node(lab.xattr_nid(OTHER), |bytes| put_u32(bytes, 4072, FREE.0)),
        &["node_footer", "blocks_count", "leaked", "count"],
        Sees,
    ),
    (
        "footer's offset",
        |lab| lab.node(lab.nid_slot(BIG, 0), |bytes| put_u32(bytes, 4080, u32_at(bytes, 4080) ^ 16)),
        &["node_footer", "blocks_count", "leaked", "count"],
        Misses,
    ),
    ("footer's cold mark", |lab| lab.inode(FILE, |bytes| bytes[4080] ^= 1), &["node_cold"], Misses),
    (
        "footer's version",
        |lab| {
            let newer = lab.checker().pack.checkpoint.version as u32 + 1;
            lab.inode(FILE, |bytes| put_u32(bytes, 4084, newer));
        },
        &["node_version"],
        Misses,
    ),
    ("footer's next block", |lab| lab.inode(FILE, |bytes| put_u32(bytes, 4092, 7)), &["node_next"], Misses),
    (
        "node named twice",
        |lab| {
            let direct = lab.nid_slot(BIG, 0);
            lab.inode(BIG, |bytes| inode::set_nid_slot(bytes, 1, direct));
        },
        &["node_pointer"],
        Sees,
    ),
    ("free node", |lab| lab.inode(BIG, |bytes| inode::set_nid_slot(bytes, 1, FREE)), &["node_pointer"], Sees),
    (
        "node that nothing leads to",
        |lab| {
            let nid = lab.xattr_nid(OTHER);
            assert!(nid != Nid::NONE);
            let inline = lab.layout(OTHER).inline_xattr_range();
            lab.inode(OTHER, |bytes| {
                bytes[inline].fill(0);
                put_u32(bytes, 76, 0);
                inode::set_blocks(bytes, inode::blocks(bytes) - 1);
            });
        },
        &["node_unreachable"],
        Sees,
    ),
    ("mode", |lab| lab.inode(PIPE, |bytes| put_u16(bytes, 0, 0o030644)), &["inode_damaged"], Sees),
    ("checksum", |lab| lab.node(FILE, |bytes| bytes[32] ^= 1), &["inode_checksum"], Sees),
    ("feature", |lab| lab.inode(FILE, |bytes| bytes[2] |= 0x40), &["inode_feature"], Misses),
    (
        "word before inline contents",
        |lab| {
            let at = lab.layout(FAST_LINK).addr_range().start;
            lab.inode(FAST_LINK, |bytes| put_u32(bytes, at, 7));
        },
        &["inline_reserved"],
        Sees,
    ),
    ("mark of inline data", |lab| lab.inode(FAST_LINK, |bytes| bytes[3] &= !8), &["inline_unmarked"], Sees),
    ("no room for attributes", |lab| lab.set_xattr_words(FAST_LINK, 0), &["inline_xattr_size"], Sees),
    ("too much room for attributes", |lab| lab.set_xattr_words(FAST_LINK, 904), &["inline_xattr_size"], Sees),
    ("pipe with an address", |lab| lab.set_addr(PIPE, 3, BlkAddr(9)), &["unexpected_pointers"], Misses),
    (
        "cached extent",
        |lab| {
            let block = lab.addr(FILE, 0).0 + 1;
            lab.inode(FILE, |bytes| {
                put_u32(bytes, 352, block);
                put_u32(bytes, 356, 1);
            });
        },
        &["extent"],
        Sees,
    ),
    ("count of a file's blocks", |lab| lab.inode(FILE, |bytes| inode::set_blocks(bytes, 7)), &["blocks_count"], Sees),
    ("directory's size", |lab| lab.inode(MANY, |bytes| inode::set_size(bytes, 4096)), &["size_too_small"], Misses),
    ("file's size", |lab| lab.inode(FILE, |bytes| inode::set_size(bytes, 1)), &["blocks_beyond_end"], Misses),
    (
        "long link's size",
        |lab| lab.inode(SLOW_LINK, |bytes| inode::set_size(bytes, 5000)),
        &["symlink_invalid"],
        Misses,
    ),
    (
        "link without a target",
        |lab| lab.inode(FAST_LINK, |bytes| inode::set_size(bytes, 0)),
        &["symlink_invalid"],
        Misses,
    ),
    (
        "magic of attributes",
        |lab| {
            let at = lab.layout(FILE).inline_xattr_range().start;
            lab.inode(FILE, |bytes| bytes[at] = 1);
        },
        &["xattr_magic"],
        Misses,
    ),
    (
        "name space of an attribute",
        |lab| {
            let at = lab.layout(FILE).inline_xattr_range().start + 24;
            lab.inode(FILE, |bytes| bytes[at] = 99);
        },
        &["xattrs"],
        Misses,
    ),
    ("illegal address", |lab| lab.set_addr(FILE, 1, BlkAddr(70)), &["illegal_block", "leaked", "count"], Sees),
    (
        "block of two files",
        |lab| lab.set_addr(OTHER, 0, lab.addr(FILE, 0)),
        &["multiply_claimed", "leaked", "count"],
        Sees,
    ),
    (
        "summary of data in the pack",
        |lab| {
            let (_, offset) = lab.geo().segment_of(lab.addr(FILE, 0)).unwrap();
            lab.pack(|pack| pack.summaries[Log::WarmData as usize].as_mut().unwrap().entries[offset].offset += 1);
        },
        &["summary"],
        Sees,
    ),
    (
        "summary of a node in the pack",
        |lab| {
            let (_, offset) = lab.geo().segment_of(lab.place(FILE)).unwrap();
            lab.pack(|pack| pack.summaries[Log::WarmNode as usize].as_mut().unwrap().entries[offset].nid = FREE);
        },
        &["summary"],
        Sees,
    ),
    (
        "summary of a closed segment",
        |lab| lab.block(lab.geo().summary_at(lab.closed()), |bytes| bytes[0] ^= 1),
        &["summary"],
        Sees,
    ),
    (
        "kind of a closed segment",
        |lab| lab.block(lab.geo().summary_at(lab.closed()), |bytes| bytes[4091] = 1),
        &["summary_kind"],
        Sees,
    ),
    (
        "length of a name",
        |lab| lab.dentry(DIR, "device", |entry| put_u16(entry, 8, 0)),
        &["entries_damaged", "unattached"],
        Sees,
    ),
    (
        "dot missing",
        |lab| lab.entries(SUB, ".", |bytes, region, _| bytes[region.bitmap.start] &= !1),
        &["dot_missing"],
        Sees,
    ),
    ("dot names another", |lab| lab.dentry(SUB, ".", |entry| put_u32(entry, 4, DIR.0)), &["dot_wrong"], Sees),
    ("dot dot names another", |lab| lab.dentry(SUB, "..", |entry| put_u32(entry, 4, 3)), &["dot_dot_wrong"], Sees),
    ("hash", |lab| lab.dentry(DIR, "pipe", |entry| entry[0] ^= 1), &["entry_hash"], Sees),
    (
        "names below the last level",
        |lab| lab.inode(MANY, |bytes| put_u32(bytes, 72, u32_at(bytes, 72) - 1)),
        &["entry_misplaced"],
        Misses,
    ),
    (
        "name of a free node",
        |lab| lab.dentry(DIR, "pipe", |entry| put_u32(entry, 4, FREE.0)),
        &["entry_unused", "unattached"],
        Sees,
    ),
    (
        "name of a node that is no inode",
        |lab| {
            let node = lab.xattr_nid(OTHER).0;
            lab.dentry(DIR, "pipe", |entry| put_u32(entry, 4, node));
        },
        &["entry_unused", "unattached"],
        Sees,
    ),
    (
        "name of the meta inode",
        |lab| lab.dentry(DIR, "pipe", |entry| put_u32(entry, 4, 2)),
        &["entry_reserved", "unattached"],
        Sees,
    ),
    ("type", |lab| lab.dentry(DIR, "pipe", |entry| entry[10] = 1), &["entry_type"], Sees),
    (
        "second name of a directory",
        |lab| {
            lab.dentry(DIR, "pipe", |entry| {
                put_u32(entry, 4, SUB.0);
                entry[10] = 2;
            })
        },
        &["entry_directory_again", "unattached"],
        Sees,
    ),
    (
        "name twice",
        |lab| {
            lab.entries(DIR, "slow", |bytes, region, slot| {
                let (name, dentry) = (region.names + 8 * slot, region.dentries + 11 * slot);
                bytes[name..name + 4].copy_from_slice(b"fast");
                put_u32(bytes, dentry, dentry::hash(b"fast"));
            })
        },
        &["name_stale", "entry_duplicate"],
        Misses,
    ),
    ("directory's carried parent", |lab| lab.inode(SUB, |bytes| put_u32(bytes, 84, 3)), &["parent_wrong"], Sees),
    ("carried name", |lab| lab.inode(FILE, |bytes| bytes[92] = b'F'), &["name_stale"], Misses),
    ("carried parent", |lab| lab.inode(FILE, |bytes| put_u32(bytes, 84, DIR.0)), &["name_stale"], Misses),
    (
        "directory in itself",
        |lab| {
            lab.entries(Nid::ROOT, "dir", dentry::remove);
            lab.dentry(Nid::ROOT, "file", |entry| entry[10] = 1);
            lab.inode(SUB, |bytes| {
                let region = Region::inline(Layout::of(bytes, true).inline_range());
                dentry::insert(bytes, &region, 2, dentry::hash(b"dir"), DIR, FileKind::Directory, b"dir");
            });
        },
        &["dot_dot_wrong", "parent_wrong", "directory_loop", "link_count"],
        Sees,
    ),
    ("links of a file", |lab| lab.inode(FILE, |bytes| put_u32(bytes, 12, 2)), &["link_count"], Sees),
    ("links of a directory", |lab| lab.inode(DIR, |bytes| put_u32(bytes, 12, 9)), &["link_count"], Sees),
    ("file without a name", |lab| lab.entries(Nid::ROOT, "file", dentry::remove), &["unattached"], Sees),
    ("orphan that is free", |lab| lab.pack(|pack| pack.orphans.push(FREE)), &["orphan_unused"], Sees),
    ("orphan with a name", |lab| lab.pack(|pack| pack.orphans.push(FILE)), &["orphan_named"], Sees),
    ("root is a file", |lab| lab.inode(Nid::ROOT, |bytes| put_u16(bytes, 0, 0o100755)), &[], Sees),
];

/// Returns whether `fsck.f2fs` complains, and its output; `None` if it is not installed.
fn fsck_f2fs(disk: &MemDisk) -> Option<(bool, String)> {
    let image = tempfile::NamedTempFile::new().unwrap();
    disk.write_to(image.path()).unwrap();
    let mut command = Command::new("fsck.f2fs");
    command.arg("--dry-run").arg(image.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("SKIPPED: fsck.f2fs is not installed (package f2fs-tools)");
        return None;
    };
    let _ = child.stdin.take().unwrap().write_all(b"n\nn\nn\nn\n");
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let complains = ["[FIX]", "[ASSERT]", "[Fail]"].iter().any(|word| text.contains(word));
    Some((!output.status.success() || complains, text))
}

#[test]
fn one_damage_one_issue() {
    let mut wrong = Vec::new();
    for (what, damage, issues, theirs) in DAMAGES {
        let disk = golden();
        damage(&Lab { disk: &disk });
        let found = run(&disk);
        // A volume that has lost its root loses much more.
        let as_expected = match issues {
            [] => !found.findings.is_empty(),
            issues => names(&found) == *issues,
        };
        if !as_expected {
            let texts: Vec<String> = found.findings.iter().map(|f| f.issue.to_string()).take(12).collect();
            wrong.push(format!("{what}: {:?}\n  {}", names(&found), texts.join("\n  ")));
        }
        if let Some((sees, text)) = fsck_f2fs(&disk)
            && sees != (*theirs == Sees)
        {
            wrong.push(format!("{what}: fsck.f2fs sees it: {sees}\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn leaks_are_told_from_corruption() {
    for (what, damage, issues, _) in DAMAGES {
        let disk = golden();
        damage(&Lab { disk: &disk });
        let harmless = ["leaked", "count", "unattached", "node_unreachable"];
        let leak = issues.iter().all(|issue| harmless.contains(issue)) && !issues.is_empty();
        let outcome = run(&disk);
        if leak {
            assert!(outcome.is_leak_only() && outcome.errors_left(), "{what}: {:?}", outcome.findings);
        } else if outcome.is_leak_only() {
            assert_eq!(outcome.exit_code(), 0, "{what}: {:?}", outcome.findings);
        }
    }
}

#[test]
fn the_golden_volume_is_clean_and_has_everything() {
    for disk in [written(), golden()] {
        let outcome = run(&disk);
        assert!(outcome.findings.is_empty(), "{:?}", outcome.findings);
        assert_eq!((outcome.exit_code(), outcome.is_leak_only(), outcome.worst), (0, true, None));
        assert_eq!(outcome.inodes_used, 11);
    }
    let disk = golden();
    let lab = Lab { disk: &disk };
    let big = lab.read(lab.place(BIG));
    assert!((0..3).all(|slot| (inode::nid_slot(&big, slot) != Nid::NONE) == (slot != 1)), "direct and indirect nodes");
    assert!(lab.xattr_nid(OTHER) != Nid::NONE);
    assert!(u32_at(&lab.read(lab.place(MANY)), 72) > 2, "levels");
    assert!(lab.read(lab.place(FAST_LINK))[3] & 2 != 0, "inline data");
    assert!(lab.read(lab.place(DIR))[3] & 4 != 0, "inline entries");
}

#[test]
fn a_part_of_the_cached_extent_may_be_true() {
    let disk = golden();
    let lab = Lab { disk: &disk };
    let block = lab.addr(FILE, 1).0;
    lab.inode(FILE, |bytes| {
        [(348, 1), (352, block), (356, 2)].iter().for_each(|(at, value)| put_u32(bytes, *at, *value))
    });
    assert_eq!(names(&run(&disk)), Vec::<String>::new());
    lab.inode(FILE, |bytes| put_u32(bytes, 356, 3));
    assert_eq!(names(&run(&disk)), ["extent"]);
}

#[test]
fn a_torn_checkpoint_gives_way_to_the_older_one() {
    let disk = written();
    let lab = Lab { disk: &disk };
    let (geo, newest) = (lab.geo(), lab.newest());
    let (start, older) = (geo.pack_at(newest), geo.pack_at(1 - newest));
    let blocks = u32_at(&lab.read(start), 136);
    lab.block(BlkAddr(start.0 + blocks - 1), |bytes| bytes.fill(0));
    let torn = run(&disk);
    assert_eq!(names(&torn), ["pack_torn"]);
    assert_eq!(torn.exit_code(), 0);
    lab.block(start, |bytes| bytes[0] ^= 1);
    assert_eq!(names(&run(&disk)), ["pack_unusable"]);
    lab.block(older, |bytes| bytes.fill(0));
    let none = run(&disk);
    assert_eq!(names(&none), ["pack_unusable", "no_checkpoint"]);
    assert_eq!((none.worst, none.exit_code()), (Some(Severity::Fatal), 4));
}

#[test]
fn a_damaged_checkpoint_does_not_silently_give_way_to_the_older_one() {
    let disk = written();
    let lab = Lab { disk: &disk };
    lab.pack(|pack| pack.checkpoint.valid_blocks = u64::MAX);
    let outcome = run(&disk);
    assert_eq!((names(&outcome)[0].as_str(), outcome.exit_code()), ("pack_damaged", 4), "{:?}", outcome.findings);
    assert!(fsck_f2fs(&disk).is_none_or(|(sees, _)| sees));
    let disk: moafs_disk::SharedDisk = Arc::new(disk);
    let open = |read_only| {
        let options = crate::OpenOptions { read_only, ..Default::default() };
        crate::F2fs::open(Arc::clone(&disk), Live::new(), options).err().map(|error| error.to_string())
    };
    let refused = open(false).expect("a mount for writing is refused");
    assert!(refused.contains("blocks are in use") && refused.contains("-o ro"), "{refused}");
    assert_eq!(open(true), None);
}

#[test]
fn a_checkpoint_whose_first_block_is_impossible_but_whole_does_not_give_way_to_the_older_one() {
    // Of a pack of so many blocks, fsck.f2fs says nothing and takes the older one.
    let damages = [("all flags", 132, u32::MAX, Sees), ("one block", 136, 1, Sees), ("600 blocks", 136, 600, Misses)];
    for (damage, at, value, sees) in damages {
        let disk = written();
        let lab = Lab { disk: &disk };
        lab.block(lab.geo().pack_at(lab.newest()), |block| {
            put_u32(block, at, value);
            let checksum = crc32(MAGIC, &block[..BLOCK - 4]);
            put_u32(block, BLOCK - 4, checksum);
        });
        let outcome = run(&disk);
        assert_eq!((names(&outcome)[0].as_str(), outcome.exit_code()), ("pack_damaged", 4), "{damage}");
        assert!(fsck_f2fs(&disk).is_none_or(|(theirs, _)| theirs == (sees == Sees)), "{damage}");
        let disk: moafs_disk::SharedDisk = Arc::new(disk);
        let open = |read_only| {
            let options = crate::OpenOptions { read_only, ..Default::default() };
            crate::F2fs::open(Arc::clone(&disk), Live::new(), options).map(drop)
        };
        assert!(open(false).is_err() && open(true).is_ok(), "{damage}");
    }
}

#[test]
fn volumes_that_cannot_be_checked_are_refused() {
    let disk = golden();
    [0, 1].into_iter().for_each(|copy| disk.poke(copy * BLOCK as u64 + 1024 + 2180, &[0, 0x10, 1, 0]));
    let text = check(&disk, &CheckOptions::default(), &mut |_| ()).unwrap_err().to_string();
    assert_eq!(text, "the volume cannot be checked: feature casefold, packed_ssa is not supported");
    [0, 1].into_iter().for_each(|copy| disk.poke(copy * BLOCK as u64 + 1024, &[0; 4]));
    let error = check(&disk, &CheckOptions::default(), &mut |_| ()).unwrap_err();
    assert!(matches!(error, CheckError::Damaged(_)), "{error}");
    let small = MemDisk::from_bytes(&golden().to_bytes()[..40 << 20]);
    let error = check(&small, &CheckOptions::default(), &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("the device has only 10240"), "{error}");
    assert!(check(&MemDisk::new(3), &CheckOptions::default(), &mut |_| ()).is_err());
}

#[test]
fn our_own_empty_volumes_are_clean() {
    for features in judge::features() {
        for large_nat_bitmap in [false, true] {
            let disk = MemDisk::new(256 << 11);
            let options = MkfsOptions { features, ..MkfsOptions::new([7; 16], Timestamp::new(5, 0)) };
            mkfs(&disk, &MkfsOptions { large_nat_bitmap, segs_per_sec: 2, ..options }).unwrap();
            assert_eq!(names(&run(&disk)), Vec::<String>::new());
        }
    }
}

#[test]
fn nodes_and_data_in_one_section_are_a_note() {
    let disk = MemDisk::new(256 << 11);
    let options = MkfsOptions { segs_per_sec: 4, ..MkfsOptions::new([7; 16], Timestamp::new(5, 0)) };
    mkfs(&disk, &options).unwrap();
    let lab = Lab { disk: &disk };
    let (node, _) = lab.current(Log::HotNode);
    lab.sit(Segno(node.0 + 1), |entry| {
        entry.log = Log::ColdData;
        entry.map.set(0);
    });
    let found = run(&disk).findings;
    let section = node.0 / 4;
    let mixed = Finding { issue: Issue::MixedSection { section, nodes: 1, data: 1 }, severity: Severity::Note };
    assert!(found.contains(&mixed), "{found:?}");
    // The planted block has no owner.
    assert_eq!(names(&run(&disk)).iter().filter(|name| *name != "leaked" && *name != "count").count(), 1);
}

#[test]
fn a_terabyte_with_few_files_is_checked_with_few_requests() {
    let disk = Arc::new(MemDisk::new(1 << 31));
    mkfs(&*disk, &MkfsOptions::new([7; 16], Timestamp::new(5, 0))).unwrap();
    populate(&disk);
    let trace = Trace::new(disk, Live::new());
    let mut passes = Vec::new();
    let outcome = check(&trace, &CheckOptions::default(), &mut |progress| {
        assert!(progress.done <= progress.total);
        passes.push(progress.pass);
    });
    assert_eq!(names(&outcome.unwrap()), Vec::<String>::new());
    let seen = trace.counters();
    let (requests, bytes) = (seen.requests(|_| true), seen.bytes(|_| true));
    assert!(requests < 400 && bytes < 256 << 20, "{requests} requests for {bytes} bytes");
    assert!(passes.is_sorted());
    passes.dedup();
    assert_eq!(passes, [1, 2, 3, 4]);
}

#[test]
fn a_file_that_is_open_without_a_name_is_an_orphan() {
    let disk = judge::volume(64, features());
    let vfs = judge::mount(&disk);
    let who = judge::root();
    let ino = vfs.create(&who, Ino(3), name(b"open"), &judge::new(FileKind::Regular)).unwrap().ino;
    vfs.write(&who, ino, 0, &[1; 3 * BLOCK], false).unwrap();
    vfs.unlink(&who, Ino(3), name(b"open")).unwrap();
    vfs.sync().unwrap();
    let cut = disk.snapshot();
    assert_eq!(names(&run(&cut)), Vec::<String>::new());
    let lab = Lab { disk: &cut };
    assert_eq!(lab.checker().pack.orphans, [Nid(ino.0 as u32)]);
    lab.pack(|pack| pack.orphans.clear());
    assert_eq!(names(&run(&cut)), ["unattached"]);
}

/// Makes a volume with `mkfs.f2fs` and fills it with `sload.f2fs`; `None` if they are not
/// installed.
fn by_the_reference_tools(options: &[&str]) -> Option<MemDisk> {
    let scratch = tempfile::tempdir().unwrap();
    let (image, tree) = (scratch.path().join("image"), scratch.path().join("tree"));
    fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    for index in 0..400 {
        fs::write(tree.join(format!("a/b/file-with-a-name-{index}")), vec![7; index * 37]).unwrap();
    }
    fs::write(tree.join("large"), vec![1; 12 << 20]).unwrap();
    fs::hard_link(tree.join("large"), tree.join("a/again")).unwrap();
    std::os::unix::fs::symlink("a/b", tree.join("link")).unwrap();
    let quiet = |command: &mut Command| command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if quiet(Command::new("mkfs.f2fs").args(["-q", "-f"]).args(options).arg(&image)).is_err() {
        eprintln!("SKIPPED: mkfs.f2fs is not installed (package f2fs-tools)");
        return None;
    }
    quiet(Command::new("sload.f2fs").arg("-f").arg(&tree).arg(&image)).unwrap();
    Some(MemDisk::read_from(&image).unwrap())
}

#[test]
fn volumes_of_the_reference_tools_are_clean() {
    for options in [
        &[][..],
        &["-s", "2", "-z", "2"],
        &["-i", "-a", "1"],
        &["-O", "extra_attr,inode_checksum,sb_checksum,flexible_inline_xattr,inode_crtime,lost_found,quota"],
        &["-g", "android"],
    ] {
        let Some(disk) = by_the_reference_tools(options) else { return };
        let outcome = run(&disk);
        // `sload.f2fs` fills segments of any temperature, sections with any segments, and leaves addresses in the place
        // of attributes.
        let known = |issue: &Issue| {
            matches!(issue, Issue::Temperature { .. } | Issue::MixedSection { .. } | Issue::XattrMagic { .. })
        };
        let worse = outcome.findings.iter().filter(|finding| !known(&finding.issue));
        let texts: Vec<String> = worse.map(|finding| finding.issue.to_string()).collect();
        assert!(texts.is_empty(), "{options:?}: {}", texts.join("\n"));
        assert!(outcome.inodes_used > 400);
    }
}

/// Changes a few bytes where they hurt: metadata, or anywhere.
fn mutate(disk: &MemDisk, blocks: &[BlkAddr], random: &mut Pcg64) {
    for _ in 0..random.random_range(1..12) {
        let block = match random.random_range(0..12) {
            0 => BlkAddr(0),
            1..10 => blocks[random.random_range(0..blocks.len())],
            _ => BlkAddr(random.random_range(0..16384)),
        };
        let within = match random.random_range(0..3) {
            0 => random.random_range(0..512),
            1 => random.random_range(4000..4093),
            _ => random.random_range(0..4093u64),
        };
        let at = u64::from(block.0) * BLOCK as u64 + within;
        let mut bytes = [0; 4];
        disk.peek(at, &mut bytes);
        match random.random_range(0..4) {
            0 => bytes[0] ^= 1 << random.random_range(0..8),
            1 => bytes = u32::to_le_bytes(random.random_range(0..1200)),
            2 => bytes = u32::to_le_bytes(random.random_range(0..16384)),
            _ => bytes = [random.random(), [0, 0xFF][random.random_range(0..2usize)], bytes[2], bytes[3]],
        }
        disk.poke(at, &bytes);
    }
}

/// Corrects the checksums; without that the checker would refuse each mutation at once.
fn reseal(disk: &MemDisk, nodes: &[BlkAddr], uuid: &[u8; 16]) {
    let lab = Lab { disk };
    nodes.iter().for_each(|block| lab.block(*block, |bytes| inode::seal_checksum(bytes, uuid)));
    let checkpoint = |bytes: &mut [u8]| {
        let checksum = crate::format::crc::crc32(crate::format::crc::MAGIC, &bytes[..4092]);
        put_u32(bytes, 4092, checksum);
    };
    for pack in [512, 1024] {
        lab.block(BlkAddr(pack), checkpoint);
        let blocks = u32_at(&lab.read(BlkAddr(pack)), 136).clamp(1, 512);
        let first = lab.read(BlkAddr(pack));
        lab.block(BlkAddr(pack + blocks - 1), |bytes| bytes.copy_from_slice(&first));
    }
}

fn survive_mutations(seeds: std::ops::Range<u64>) {
    let original = golden();
    let lab = Lab { disk: &original };
    let checker = lab.checker();
    let geo = &checker.geo;
    let nodes: Vec<BlkAddr> = (3..40).map(|nid| checker.nat.get(Nid(nid)).addr).filter(|addr| addr.is_real()).collect();
    let mut blocks = nodes.clone();
    blocks.extend((0..12).map(|slot| lab.addr(MANY, slot)).filter(|addr| addr.is_real()));
    blocks
        .extend((0..2).flat_map(|pack| (0..8).map(move |at| (pack, at))).map(|(p, at)| BlkAddr(geo.pack_at(p).0 + at)));
    blocks.extend([false, true].map(|second| geo.nat_at(0, second)));
    blocks.extend([false, true].map(|second| geo.sit_at(0, second)));
    blocks.push(geo.summary_at(lab.closed()));
    let (mut refused, mut found) = (0, 0);
    for seed in seeds.clone() {
        let disk = original.snapshot();
        let random = &mut Pcg64::seed_from_u64(seed);
        mutate(&disk, &blocks, random);
        if random.random_range(0..4) > 0 {
            reseal(&disk, &nodes, &checker.superblock.uuid);
        }
        match check(&disk, &CheckOptions::default(), &mut |_| ()) {
            Ok(outcome) => {
                assert!(outcome.findings.iter().all(|finding| !finding.issue.to_string().is_empty()));
                assert!(outcome.findings.len() < 5000, "seed {seed}: {} findings", outcome.findings.len());
                found += u64::from(!outcome.findings.is_empty());
            }
            Err(CheckError::Disk { doing, source }) => panic!("seed {seed}: {doing}: {source}"),
            Err(_) => refused += 1,
        }
    }
    let seeds = seeds.end - seeds.start;
    assert!(found > seeds / 2 && refused < seeds / 5, "{found} found, {refused} refused");
}

#[test]
fn mutated_volumes_are_checked_to_the_end() {
    survive_mutations(0..300);
}

#[test]
#[ignore = "minutes"]
fn many_mutated_volumes_are_checked_to_the_end() {
    survive_mutations(0..10_000);
}
