//! The structures of ext3 and ext4: each damage is found, repaired, and harms no other file; e2fsck judges before and
//! after.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use super::super::mapped::{Mapped, Run};
use super::super::scan::{Judge, Pointer, Step, walk_map};
use super::super::tree::mapped_by_tree;
use super::super::volume::Volume;
use super::*;
use crate::format::checksum::Sealed;
use crate::format::dir::{self, Form};
use crate::format::inode::InodeFlags;
use crate::format::{Owner, put_u16};

/// A volume with extents, checksums, uninitialised groups, an index, trees of two levels and an orphan file.
const FULL: &[&str] =
    &["-t", "ext4", "-b", "1024", "-g", "4096", "-N", "1024", "-J", "size=1", "-O", "metadata_csum_seed,orphan_file"];

fn made(options: &[&str], size: &str) -> Option<MemDisk> {
    if !judge::have("mke2fs") {
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (image, tree) = (scratch.path().join("image"), scratch.path().join("tree"));
    fill(&tree);
    let base = ["-F", "-q", "-E", "nodiscard,lazy_itable_init=1", "-d", tree.to_str().unwrap()];
    let output = Command::new("mke2fs").args(base).args(options).arg(&image).arg(size).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // An index, which mke2fs does not make.
    assert!(matches!(judge::run("e2fsck", &["-fyD"], &image).code, Some(0 | 1)));
    Some(MemDisk::read_from(&image).unwrap())
}

fn fill(tree: &std::path::Path) {
    use std::os::unix::fs::{FileExt, symlink};
    fs::create_dir_all(tree.join("many")).unwrap();
    for number in 0..300 {
        fs::write(tree.join("many").join(format!("a-name-of-some-length-{number:04}")), format!("{number}")).unwrap();
    }
    fs::create_dir_all(tree.join("small/below")).unwrap();
    fs::write(tree.join("small/file"), vec![b'f'; 5000]).unwrap();
    for (name, byte) in [("large", b'l'), ("other", b'o')] {
        let file = fs::File::create(tree.join(name)).unwrap();
        for piece in 0..500u64 {
            file.write_all_at(&[byte; 1500], piece * 4096).unwrap();
        }
    }
    symlink("t".repeat(200), tree.join("link")).unwrap();
}

fn full() -> Option<MemDisk> {
    static MADE: OnceLock<Option<MemDisk>> = OnceLock::new();
    MADE.get_or_init(|| made(FULL, "16M")).as_ref().map(MemDisk::snapshot)
}

/// Access to the structures of a volume with checksums. What is changed gets a right checksum.
struct Bench<'a> {
    lab: Lab<'a>,
}

/// Collects what pointers map.
struct Pointers(Mapped);

impl Judge for Pointers {
    fn pointer(&mut self, pointer: Pointer) -> Step {
        match pointer.level {
            0 => self.0.push(Run::one(pointer.lbn, pointer.block)),
            _ => self.0.nodes.push(pointer.block),
        }
        Step::Keep
    }

    fn rewritten(&mut self, _: BlockNo, _: moafs_disk::Buf) {}
}

impl<'a> Bench<'a> {
    fn new(disk: &'a MemDisk) -> Bench<'a> {
        Bench { lab: Lab::new(disk) }
    }

    fn seal(&self, what: Sealed, bytes: &mut [u8]) {
        self.lab.geo.checksums.seal(what, bytes).unwrap();
    }

    fn owner(&self, ino: InodeNo) -> Owner {
        self.lab.inode(ino).owner(ino)
    }

    fn map(&self, ino: InodeNo) -> Mapped {
        let (geo, mut inode) = (&self.lab.geo, self.lab.inode(ino));
        let volume = Volume::new(self.lab.disk, geo.clone());
        if inode.has_extents() {
            return mapped_by_tree(&volume, geo, &inode).unwrap();
        }
        let mut pointers = Pointers(Mapped::default());
        walk_map(&volume, geo, &mut inode.block, &mut pointers).unwrap();
        pointers.0
    }

    fn blocks(&self, ino: InodeNo) -> Vec<(u64, u64)> {
        self.map(ino).blocks().map(|(lbn, block)| (lbn, block.0)).collect()
    }

    /// Returns all names, with their inodes and the contents of files.
    fn tree(&self) -> BTreeMap<String, (InodeNo, Vec<u8>)> {
        let mut tree = BTreeMap::new();
        let mut todo = vec![(String::new(), InodeNo::ROOT)];
        while let Some((path, directory)) = todo.pop() {
            for (_, block) in self.blocks(directory) {
                let mut names = Vec::new();
                self.lab.block(block, |bytes| {
                    let entries = dir::records(bytes, Form::of(&self.lab.geo)).map_while(Result::ok);
                    let entries = entries.filter(|e| e.is_used() && !matches!(e.name, b"." | b".."));
                    names.extend(entries.map(|e| (String::from_utf8_lossy(e.name).into_owned(), e.inode)));
                });
                for (name, ino) in names {
                    let name = format!("{path}/{name}");
                    let inode = self.lab.inode(ino);
                    tree.insert(name.clone(), (ino, if inode.is_dir() { Vec::new() } else { self.contents(ino) }));
                    if inode.is_dir() {
                        todo.push((name, ino));
                    }
                }
            }
        }
        tree
    }

    fn contents(&self, ino: InodeNo) -> Vec<u8> {
        let inode = self.lab.inode(ino);
        if inode.is_fast_symlink(&self.lab.geo) {
            return inode.fast_symlink();
        }
        let mut bytes = vec![0; inode.size as usize];
        for (lbn, block) in self.blocks(ino) {
            let at = (lbn * u64::from(self.lab.geo.block_size)) as usize;
            let len = self.lab.geo.block_bytes().min(bytes.len().saturating_sub(at));
            self.lab.block(block, |block| bytes[at..at + len].copy_from_slice(&block[..len]));
        }
        bytes
    }

    fn find(&self, path: &str) -> InodeNo {
        self.tree()[path].0
    }

    fn slot(&self, ino: InodeNo, change: impl FnOnce(&mut [u8])) {
        self.lab.slot(ino, |slot| {
            change(slot);
            self.seal(Sealed::Inode(ino), slot);
        });
    }

    fn inode(&self, ino: InodeNo, change: impl FnOnce(&mut Inode)) {
        self.lab.set_inode(ino, change);
        self.slot(ino, |_| ());
    }

    /// Changes the root of a file's extent tree.
    fn root(&self, path: &str, change: impl FnOnce(&mut [u8])) {
        self.slot(self.find(path), |slot| change(&mut slot[40..100]));
    }

    /// Changes the node of a file's tree with this number, in the order of a walk.
    fn node(&self, path: &str, number: usize, change: impl FnOnce(&mut [u8])) {
        let ino = self.find(path);
        let block = self.map(ino).nodes[number];
        self.lab.block(block.0, |bytes| {
            change(bytes);
            let _ = self.lab.geo.checksums.seal(Sealed::Extents(self.owner(ino)), bytes);
        });
    }

    fn dir_block(&self, path: &str, lbn: usize, change: impl FnOnce(&mut [u8])) {
        let ino = if path == "/" { InodeNo::ROOT } else { self.find(path) };
        let is_indexed = self.lab.inode(ino).flags.contains(InodeFlags::INDEX);
        self.lab.block(self.blocks(ino)[lbn].1, |bytes| {
            change(bytes);
            let what = dir::sealed(bytes, lbn as u64, is_indexed, self.owner(ino));
            let _ = self.lab.geo.checksums.seal(what, bytes);
        });
    }

    fn descriptor(&self, group: u32, change: impl FnOnce(&mut Descriptor)) {
        self.lab.set_descriptor(group, change);
        let (block, offset) = self.lab.geo.locate_descriptor(GroupNo(group));
        let end = offset + self.lab.geo.desc_size as usize;
        self.lab.block(block.0, |bytes| self.seal(Sealed::Descriptor(GroupNo(group)), &mut bytes[offset..end]));
    }

    fn superblock(&self, change: impl FnOnce(&mut [u8])) {
        self.lab.superblock(|raw| {
            change(raw);
            self.seal(Sealed::Superblock, raw);
        });
    }

    fn orphan_file(&self) -> InodeNo {
        let mut ino = 0;
        self.lab.superblock(|raw| ino = u32_at(raw, 0x280));
        InodeNo(ino)
    }

    fn orphan_block(&self, change: impl FnOnce(&mut [u8])) {
        let ino = self.orphan_file();
        let block = self.blocks(ino)[0].1;
        self.lab.block(block, |bytes| {
            change(bytes);
            self.seal(Sealed::OrphanFile(self.owner(ino), BlockNo(block)), bytes);
        });
    }

    /// Returns a group whose inodes were never used.
    fn unused_group(&self) -> u32 {
        let is_unused = |group: &u32| self.lab.descriptor(*group).lacks_inode_bitmap(&self.lab.geo);
        (0..self.lab.geo.groups).find(is_unused).expect("the volume has one")
    }

    /// Returns a group whose block bitmap was never written.
    fn lazy_group(&self) -> u32 {
        let is_lazy = |group: &u32| self.lab.descriptor(*group).lacks_block_bitmap(&self.lab.geo);
        (0..self.lab.geo.groups).find(is_lazy).expect("the volume has one")
    }
}

/// A damage: its name, what it does, an issue that it causes, and the names that it may harm.
struct Case {
    what: &'static str,
    damage: fn(&Bench<'_>),
    issue: &'static str,
    victims: &'static [&'static str],
    /// True if e2fsck does not report it with `-n`.
    is_unseen: bool,
}

const fn case(
    what: &'static str,
    damage: fn(&Bench<'_>),
    issue: &'static str,
    victims: &'static [&'static str],
) -> Case {
    Case { what, damage, issue, victims, is_unseen: false }
}

const fn unseen(case: Case) -> Case {
    Case { is_unseen: true, ..case }
}

const SUMS: &[Case] = &[
    case("checksum of the superblock", |b| b.lab.superblock(|raw| raw[0x3FC] ^= 1), "checksum", &[]),
    case(
        "checksum of a descriptor",
        |b| {
            let (block, offset) = b.lab.geo.locate_descriptor(GroupNo(1));
            b.lab.block(block.0, |bytes| bytes[offset + 0x1E] ^= 1);
        },
        "checksum",
        &[],
    ),
    case("checksum of a block bitmap", |b| b.descriptor(0, |d| d.block_bitmap_csum ^= 0x1_0000), "checksum", &[]),
    case("checksum of an inode bitmap", |b| b.descriptor(0, |d| d.inode_bitmap_csum ^= 1), "checksum", &[]),
    case("checksum of an inode", |b| b.lab.slot(b.find("/small/file"), |slot| slot[0x7C] ^= 1), "checksum", &[]),
    case(
        "checksum of a deleted inode",
        |b| {
            let is_partly_used = |group: &u32| {
                let used = b.lab.descriptor(*group).inodes_ever_used(&b.lab.geo);
                (1..b.lab.geo.inodes_per_group).contains(&used)
            };
            let group = (0..b.lab.geo.groups).find(is_partly_used).expect("the volume has one");
            let ino = b.lab.geo.inode_at(GroupNo(group), b.lab.descriptor(group).inodes_ever_used(&b.lab.geo));
            b.lab.slot(ino, |slot| slot[0x14] = 7);
            b.descriptor(group, |d| d.itable_unused -= 1);
        },
        "checksum",
        &[],
    ),
    case(
        "checksum of an extent node",
        |b| {
            let block = b.map(b.find("/large")).nodes[1];
            b.lab.block(block.0, |bytes| bytes[1020] ^= 1);
        },
        "checksum",
        &[],
    ),
    case(
        "checksum of a block of names",
        |b| {
            let block = b.blocks(b.find("/small"))[0].1;
            b.lab.block(block, |bytes| bytes[1023] ^= 1);
        },
        "checksum",
        &[],
    ),
    case(
        "checksum of an index",
        |b| {
            let block = b.blocks(b.find("/many"))[0].1;
            b.lab.block(block, |bytes| bytes[1023] ^= 1);
        },
        "checksum",
        &[],
    ),
    case(
        "checksum of an orphan file",
        |b| {
            let block = b.blocks(b.orphan_file())[0].1;
            b.lab.block(block, |bytes| bytes[1023] ^= 1);
        },
        "checksum",
        &[],
    ),
];

const EXTENTS: &[Case] = &[
    case("magic of a root", |b| b.root("/large", |root| root[0] = 0), "extent_tree", &["/large"]),
    case("magic of a node", |b| b.node("/large", 1, |node| node[0] = 0), "extent_tree", &["/large"]),
    case("node without entries", |b| b.node("/large", 1, |node| put_u16(node, 2, 0)), "extent_tree", &["/large"]),
    unseen(case("eh_max of a node", |b| b.node("/large", 1, |node| put_u16(node, 4, 83)), "extent_tree", &[])),
    unseen(case("depth of a child", |b| b.node("/large", 1, |node| put_u16(node, 6, 3)), "extent_tree", &["/large"])),
    case("entries out of order", |b| b.node("/large", 1, |node| put_u32(node, 24, 0)), "extent_tree", &["/large"]),
    case("overlapping extents", |b| b.node("/large", 1, |node| put_u16(node, 16, 9)), "extent_tree", &["/large"]),
    case("extent of no blocks", |b| b.node("/large", 1, |node| put_u16(node, 16, 0)), "extent_tree", &["/large"]),
    case(
        "extent outside the volume",
        |b| b.node("/large", 1, |node| put_u32(node, 20, 0x7FFF_FFFF)),
        "extent_tree",
        &["/large"],
    ),
    case("ee_start_hi", |b| b.node("/large", 1, |node| put_u16(node, 18, 1)), "extent_tree", &["/large"]),
    case(
        "child that begins elsewhere",
        |b| b.node("/large", 0, |node| put_u32(node, 24, 1)),
        "extent_tree",
        &["/large"],
    ),
    case(
        "child outside the volume",
        |b| b.node("/large", 0, |node| put_u32(node, 28, 99_999_999)),
        "extent_tree",
        &["/large"],
    ),
    case("child twice", |b| b.node("/large", 0, |node| node.copy_within(16..20, 28)), "map_loop", &["/large"]),
    case("no flag", |b| b.inode(b.find("/large"), |i| i.flags -= InodeFlags::EXTENTS), "extents_flag", &[]),
    case("no feature", |b| b.superblock(|raw| raw[0x60] &= !0x40), "extents_feature", &[]),
    case("size before the last extent", |b| b.inode(b.find("/large"), |i| i.size = 1), "size", &["/large"]),
    case("blocks without the nodes", |b| b.inode(b.find("/large"), |i| i.blocks -= 2), "blocks_count", &[]),
    case(
        "extents of two files name one block",
        |b| {
            let block = b.blocks(b.find("/other"))[9].1 as u32;
            b.node("/large", 1, |node| put_u32(node, 20, block));
        },
        "multiply_claimed",
        &["/large"],
    ),
    case(
        "an extent names a node of another file",
        |b| {
            let block = b.map(b.find("/other")).nodes[2].0 as u32;
            b.node("/large", 1, |node| put_u32(node, 20, block));
        },
        "multiply_claimed",
        &["/large"],
    ),
    case(
        "an extent names an inode table",
        |b| {
            let block = b.lab.descriptor(0).inode_table.0 as u32;
            b.node("/large", 1, |node| put_u32(node, 20, block));
        },
        "multiply_claimed",
        &["/large"],
    ),
    case(
        "two trees have one leaf",
        |b| {
            let block = b.map(b.find("/other")).nodes[2].0 as u32;
            b.node("/large", 0, |node| put_u32(node, 28, block));
        },
        "multiply_claimed",
        &["/large"],
    ),
    case(
        "two inodes have one root",
        |b| {
            let block = b.lab.inode(b.find("/other")).block;
            b.inode(b.find("/large"), |inode| inode.block = block);
        },
        "multiply_claimed",
        &["/large"],
    ),
    case(
        "directory with a hole",
        |b| {
            let shift = |node: &mut [u8]| {
                let last = 12 * usize::from(u16_at(node, 2));
                assert!(last > 12, "there is more than one extent");
                put_u32(node, last, u32_at(node, last) + 3);
            };
            match b.map(b.find("/many")).nodes.len() {
                0 => b.root("/many", shift),
                nodes => b.node("/many", nodes - 1, shift),
            }
        },
        "directory_hole",
        &[],
    ),
];

const DIRECTORIES: &[Case] = &[
    case("limit of an index", |b| b.dir_block("/many", 0, |root| put_u16(root, 32, 122)), "index_damaged", &[]),
    case("order of hashes", |b| b.dir_block("/many", 0, |root| put_u32(root, 48, 1)), "index_damaged", &[]),
    case("leaf that is not named", |b| b.dir_block("/many", 0, |root| root[34] -= 1), "index_damaged", &[]),
    case(
        "leaf that is named twice",
        |b| b.dir_block("/many", 0, |root| root.copy_within(44..48, 52)),
        "index_damaged",
        &[],
    ),
    case("levels of an index", |b| b.dir_block("/many", 0, |root| root[30] = 1), "index_damaged", &[]),
    case("hash version", |b| b.dir_block("/many", 0, |root| root[28] = 9), "index_damaged", &[]),
    case(
        "names in the wrong leaf",
        |b| (1..6).for_each(|lbn| b.dir_block("/many", lbn, |leaf| leaf[8] ^= 1)),
        "index_damaged",
        &["/many/"],
    ),
    case(
        "record beyond the block, in an index",
        |b| b.dir_block("/many", 2, |leaf| put_u16(leaf, 4, 5000)),
        "record_damaged",
        &["/many/"],
    ),
    case(
        "no tail",
        |b| {
            b.dir_block("/small", 0, |block| {
                let last =
                    dir::records(block, Form::of(&b.lab.geo)).map_while(Result::ok).filter(|e| e.is_used()).last();
                let at = last.unwrap().offset;
                put_u16(block, at + 4, (1024 - at) as u16);
            })
        },
        "leaf_tail",
        &[],
    ),
    case("one link, no index", |b| b.inode(b.find("/small"), |i| i.links = 1), "link_count", &[]),
];

const GROUPS: &[Case] = &[
    case(
        "used inodes behind the mark",
        |b| b.descriptor(0, |d| d.itable_unused = b.lab.geo.inodes_per_group - 14),
        "hidden_inode",
        &[],
    ),
    case("group 0 as never used", |b| b.descriptor(0, |d| d.flags |= 1), "descriptor_flags", &[]),
    case("group in use as never used", |b| b.descriptor(1, |d| d.flags |= 1), "hidden_inode", &[]),
    case(
        "more unused inodes than there are",
        |b| b.descriptor(1, |d| d.itable_unused = 60_000),
        "descriptor_flags",
        &[],
    ),
    case("no block bitmap in a group in use", |b| b.descriptor(0, |d| d.flags |= 2), "block_bitmap_uninit", &[]),
    case(
        "an inode bitmap that was never written",
        |b| b.descriptor(b.unused_group(), |d| d.flags &= !1),
        "checksum",
        &[],
    ),
    case(
        "a block bitmap that was never written",
        |b| {
            let group = b.lazy_group();
            b.lab.block(b.lab.descriptor(group).block_bitmap.0, |map| map.fill(0));
            b.descriptor(group, |d| d.flags &= !2);
        },
        "used_but_free",
        &[],
    ),
    case(
        "a bitmap on the metadata of another group",
        |b| {
            let there = b.lab.descriptor(0).inode_bitmap;
            b.descriptor(2, |d| d.inode_bitmap = there);
        },
        "descriptor_damaged",
        &[],
    ),
    case("position of a bitmap", |b| b.descriptor(1, |d| d.block_bitmap = BlockNo(1)), "descriptor_damaged", &[]),
    case("free blocks of a group", |b| b.descriptor(1, |d| d.free_blocks -= 1), "group_count", &[]),
];

const LEFT: &[Case] = &[
    case(
        "a deleted inode on the list",
        |b| {
            let ino = b.find("/small/file");
            b.dir_block("/small", 0, |block| {
                let offset = dir::find(block, Form::of(&b.lab.geo), b"file").unwrap().offset;
                put_u32(block, offset, 0);
            });
            b.inode(ino, |inode| inode.links = 0);
            b.superblock(|raw| put_u32(raw, 0xE8, ino.0));
        },
        "orphan_list",
        &["/small/file"],
    ),
    case(
        "a truncated inode on the list",
        |b| {
            let ino = b.find("/large");
            b.inode(ino, |inode| inode.size = 100_000);
            b.superblock(|raw| put_u32(raw, 0xE8, ino.0));
        },
        "orphan_list",
        &["/large"],
    ),
    unseen(case("list to nowhere", |b| b.superblock(|raw| put_u32(raw, 0xE8, 99_999)), "orphan_list", &[])),
    case(
        "a truncated inode in the orphan file",
        |b| {
            let ino = b.find("/large");
            b.inode(ino, |inode| inode.size = 100_000);
            b.orphan_block(|block| put_u32(block, 8, ino.0));
            b.superblock(|raw| put_u32(raw, 0x64, u32_at(raw, 0x64) | 0x1_0000));
        },
        "orphan_file_in_use",
        &["/large"],
    ),
    case(
        "flag of an empty orphan file",
        |b| b.superblock(|raw| put_u32(raw, 0x64, u32_at(raw, 0x64) | 0x1_0000)),
        "orphan_file_in_use",
        &[],
    ),
    case("magic of the orphan file", |b| b.orphan_block(|block| block[1016] = 0), "orphan_file", &[]),
    case("links of the journal", |b| b.inode(InodeNo::JOURNAL, |i| i.links = 0), "journal_inode", &[]),
    case("size of the journal", |b| b.inode(InodeNo::JOURNAL, |i| i.size = 1 << 60), "size", &[]),
    case("mode of the journal", |b| b.inode(InodeNo::JOURNAL, |i| i.mode = 0o040_600), "journal_inode", &[]),
    case(
        "a file named as the orphan file, without the feature",
        |b| {
            b.superblock(|raw| {
                raw[0x5D] &= !0x10;
            })
        },
        "superblock_field",
        &[],
    ),
    case(
        "superblock of the journal",
        |b| b.lab.block(b.blocks(InodeNo::JOURNAL)[0].1, |block| block[0] = 0),
        "journal",
        &[],
    ),
];

fn look(disk: &MemDisk, mode: Mode) -> Outcome {
    run_shared(&Arc::new(disk.snapshot()), mode)
}

fn run_shared(disk: &Arc<MemDisk>, mode: Mode) -> Outcome {
    let shared: SharedDisk = disk.clone();
    check_volume(&shared, &CheckOptions { mode, force: true, superblock: None, now: NOW }, &mut |_| ()).unwrap()
}

/// Plants a damage, repairs it, and returns the complaints about that.
fn judge_case(case: &Case, disk: MemDisk) -> Vec<String> {
    let mut said = Vec::new();
    let before = Bench::new(&disk).tree();
    (case.damage)(&Bench::new(&disk));
    let found = look(&disk, Mode::No);
    if !names(&found).contains(&case.issue.to_owned()) {
        said.push(format!("is reported as {:?}", names(&found)));
    }
    let verdict = judge::e2fsck(&disk).expect("the volume was made by its sister");
    if (verdict.code == Some(0)) != case.is_unseen {
        said.push(format!("e2fsck ends with {:?}: {}", verdict.code, verdict.text));
    }
    let disk = Arc::new(disk);
    let repaired = run_shared(&disk, Mode::Yes);
    if repaired.errors_left || !repaired.modified {
        said.push(format!("the repair left {:#?}", repaired.findings));
    }
    let again = look(&disk, Mode::No);
    if !again.findings.is_empty() {
        said.push(format!("after the repair: {:?}", again.findings));
    }
    let verdict = judge::e2fsck(&disk).expect("the volume was made by its sister");
    if verdict.code != Some(0) || verdict.text.contains("wrong") {
        said.push(format!(
            "after the repair e2fsck ends with {:?}: {}\n{:#?}",
            verdict.code, verdict.text, repaired.findings
        ));
    }
    let after = Bench::new(&disk).tree();
    let is_victim = |name: &str| case.victims.iter().any(|victim| name.starts_with(victim));
    for (name, (_, contents)) in before.iter().filter(|(name, _)| !is_victim(name)) {
        if after.get(name).is_none_or(|(_, found)| found != contents) {
            said.push(format!("{name} is not what it was"));
            break;
        }
    }
    said
}

fn judge_all(cases: &[Case]) {
    let mut failures = Vec::new();
    for case in cases {
        let Some(disk) = full() else { return };
        let said = judge_case(case, disk);
        if !said.is_empty() {
            failures.push(format!("{}:\n  {}", case.what, said.join("\n  ")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_wrong_checksum_is_made_right() {
    judge_all(SUMS);
}

#[test]
fn a_damaged_extent_tree_is_built_anew() {
    judge_all(EXTENTS);
}

#[test]
fn a_damaged_index_is_given_up_and_every_name_kept() {
    judge_all(DIRECTORIES);
}

#[test]
fn groups_that_were_never_used_are_told_from_those_in_use() {
    judge_all(GROUPS);
}

#[test]
fn what_a_crash_left_is_finished() {
    judge_all(LEFT);
}

/// Makes a volume with 90 files of seven blocks, one behind the other, on which so many blocks are free.
fn crowded(free: u64) -> Option<MemDisk> {
    if !judge::have("mke2fs") || !judge::have("debugfs") {
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    let [image, tree, filler] = ["image", "tree", "filler"].map(|name| scratch.path().join(name));
    fs::create_dir(&tree).unwrap();
    (0..90u8).for_each(|number| fs::write(tree.join(format!("file-{number}")), vec![number + 1; 7000]).unwrap());
    let base = ["-F", "-q", "-t", "ext4", "-b", "1024", "-E", "nodiscard", "-d", tree.to_str().unwrap()];
    let output = Command::new("mke2fs").args(base).arg(&image).arg("12M").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let disk: SharedDisk = Arc::new(MemDisk::read_from(&image).unwrap());
    let now_free = crate::head::read_superblock(&disk).unwrap().free_blocks();
    fs::write(&filler, vec![1; ((now_free - free) << 10) as usize]).unwrap();
    let write = format!("write {} filler", filler.display());
    assert_eq!(judge::run("debugfs", &["-w", "-R", &write], &image).code, Some(0));
    Some(MemDisk::read_from(&image).unwrap())
}

#[test]
fn files_of_one_extent_are_copied_where_there_is_room_for_them() {
    // The copies take 760 blocks, and each file may get a node.
    let Some(disk) = crowded(900) else { return };
    let before = Bench::new(&disk).tree();
    let damaged = InodeNo(14);
    Bench::new(&disk).inode(damaged, |inode| inode.block[4] = 767);
    let disk = Arc::new(disk);
    let outcome = run_shared(&disk, Mode::Yes);
    assert!(!outcome.errors_left && outcome.modified, "{:?}", names(&outcome));
    assert!(outcome.findings.iter().filter(|found| variant_name(&found.issue) == "multiply_claimed").count() > 500);
    assert_clean(&disk, "after the copies");
    let after = Bench::new(&disk).tree();
    let changed = before.iter().filter(|(name, (_, contents))| after.get(*name).is_none_or(|(_, now)| now != contents));
    assert!(changed.count() <= 1, "only the damaged file is another one");
}

#[test]
fn volumes_of_all_kinds_are_clean() {
    let kinds: [(&[&str], &str); 12] = [
        (&["-t", "ext3", "-b", "1024", "-J", "size=1"], "16M"),
        (&["-t", "ext3", "-b", "1024", "-I", "128", "-g", "2048", "-J", "size=1"], "16M"),
        (&["-t", "ext4", "-b", "1024"], "32M"),
        (&["-t", "ext4", "-b", "4096"], "64M"),
        (&["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "metadata_csum_seed,orphan_file"], "32M"),
        (&["-t", "ext4", "-b", "1024", "-g", "2048", "-O", "^metadata_csum,uninit_bg"], "32M"),
        (&["-t", "ext4", "-b", "2048", "-I", "128", "-O", "^64bit,large_dir", "-g", "2048"], "32M"),
        (&["-t", "ext4", "-b", "1024", "-O", "^extent,^64bit", "-g", "2048"], "32M"),
        (&["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode", "-g", "1024", "-J", "size=1"], "32M"),
        (&["-t", "ext4", "-b", "1024", "-O", "sparse_super2"], "64M"),
        (&["-t", "ext4", "-O", "^has_journal"], "32M"),
        (&["-t", "ext4", "-b", "1024", "-O", "^flex_bg,fast_commit"], "64M"),
    ];
    for (options, size) in kinds {
        let Some(disk) = made(options, size) else { return };
        let found = look(&disk, Mode::No);
        assert!(found.findings.is_empty(), "{options:?}: {:?}", found.findings);
        let (disk, before) = (Arc::new(disk.snapshot()), disk.to_bytes());
        assert!(!run_shared(&disk, Mode::Yes).modified, "{options:?}");
        assert!(disk.to_bytes() == before, "{options:?}: a check of a clean volume writes nothing");
    }
}

/// A file that a crash left half truncated: behind its end its last block has zeros, as after a mount.
#[test]
fn the_last_block_of_a_truncated_file_is_zeroed_behind_its_end() {
    let pointers = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^extent,^64bit,orphan_file"];
    for (options, is_listed) in [(FULL, true), (FULL, false), (&pointers, true)] {
        let Some(disk) = made(options, "16M") else { return };
        let disk = Arc::new(disk);
        let bench = Bench::new(&disk);
        let ino = bench.find("/large");
        let block = bench.blocks(ino).into_iter().find(|(lbn, _)| *lbn == 97).expect("it is no hole").1;
        bench.inode(ino, |inode| inode.size = 97 * 1024 + 100);
        if is_listed {
            bench.superblock(|raw| put_u32(raw, 0xE8, ino.0));
        } else {
            bench.orphan_block(|block| put_u32(block, 8, ino.0));
            bench.superblock(|raw| put_u32(raw, 0x64, u32_at(raw, 0x64) | 0x1_0000));
        }
        let bytes = |disk: &MemDisk| {
            let mut bytes = vec![0; 1024];
            disk.peek(block * 1024, &mut bytes);
            bytes
        };
        assert!(bytes(&disk)[..476].iter().all(|byte| *byte == b'l'), "they are the file's");
        assert_eq!(run_shared(&disk, Mode::Preen).exit_code(), 1);
        let found = bytes(&disk);
        assert!(found[..100].iter().all(|byte| *byte == b'l') && found[100..].iter().all(|byte| *byte == 0));
        judge::assert_clean(&disk, "truncated");
    }
}

/// The same damage on a volume without any checksum must not get past the rules.
#[test]
fn damage_is_found_without_checksums() {
    let options =
        ["-t", "ext4", "-b", "1024", "-g", "4096", "-N", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit"];
    let Some(disk) = made(&options, "16M") else { return };
    let mut failures = Vec::new();
    let skipped = ["no tail", "checksum of an extent node", "ee_start_hi"];
    for case in EXTENTS.iter().chain(DIRECTORIES).filter(|case| !skipped.contains(&case.what)) {
        let said = judge_case(case, disk.snapshot());
        if !said.is_empty() {
            failures.push(format!("{}:\n  {}", case.what, said.join("\n  ")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Returns a volume whose journal holds a transaction for each of `letters`, which fills the first block of a file
/// with it; and that block.
fn with_log(options: &str, letters: &str) -> Option<(MemDisk, u64)> {
    let disk = full()?;
    if !judge::have("debugfs") {
        return None;
    }
    let bench = Bench::new(&disk);
    let block = bench.blocks(bench.find("/other"))[0].1;
    let scratch = tempfile::tempdir().unwrap();
    let (image, script) = (scratch.path().join("image"), scratch.path().join("script"));
    disk.write_to(&image).unwrap();
    let mut lines = format!("jo {options}\n");
    for letter in letters.chars() {
        let body = scratch.path().join(letter.to_string());
        fs::write(&body, [letter as u8; 1024]).unwrap();
        lines += &format!("jw -b {block} {}\n", body.display());
    }
    fs::write(&script, lines + "jc\n").unwrap();
    let said = judge::run("debugfs", &["-w", "-f", script.to_str().unwrap()], &image);
    assert_eq!(said.code, Some(0), "{}", said.text);
    Some((MemDisk::read_from(&image).unwrap(), block))
}

fn first_byte(disk: &MemDisk, block: u64) -> u8 {
    let mut byte = [0];
    disk.peek(block * 1024, &mut byte);
    byte[0]
}

#[test]
fn a_journal_is_looked_through_or_replayed() {
    let Some((disk, block)) = with_log("-c -v 3", "j") else { return };
    let looked = look(&disk, Mode::No);
    assert_eq!((names(&looked), looked.exit_code()), (vec!["journal_not_replayed".to_owned()], 0));
    for mode in [Mode::Preen, Mode::Yes] {
        let disk = Arc::new(disk.snapshot());
        let before = disk.to_bytes();
        run_shared(&disk, Mode::No);
        assert!(disk.to_bytes() == before, "a look changes nothing");
        let outcome = run_shared(&disk, mode);
        assert_eq!((outcome.exit_code(), outcome.transactions), (1, 1), "{:?}", outcome.findings);
        assert_eq!(first_byte(&disk, block), b'j');
        assert!(look(&disk, Mode::No).findings.is_empty());
        judge::assert_clean(&disk, "replayed");
    }
}

#[test]
fn a_log_that_the_superblock_denies_is_replayed_on_demand_only() {
    let Some((disk, block)) = with_log("-c -v 3", "j") else { return };
    let disk = Arc::new(disk);
    Bench::new(&disk).superblock(|raw| raw[0x60] &= !4);
    assert_eq!(names(&run_shared(&disk, Mode::No)), ["journal_not_empty"]);
    let before = disk.to_bytes();
    assert_eq!(run_shared(&disk, Mode::Preen).exit_code(), 4);
    assert!(disk.to_bytes() == before, "nothing was changed");
    assert_eq!(run_shared(&disk, Mode::Yes).exit_code(), 1);
    assert_eq!(first_byte(&disk, block), b'j');
    judge::assert_clean(&disk, "replayed");
}

#[test]
fn a_damaged_log_is_dropped_on_demand_only() {
    let Some((disk, block)) = with_log("-c -v 3", "j") else { return };
    let disk = Arc::new(disk);
    let bench = Bench::new(&disk);
    // The copy follows the descriptor, which is the first block of the log.
    bench.lab.block(bench.blocks(InodeNo::JOURNAL)[2].1, |copy| copy[7] ^= 1);
    let before = disk.to_bytes();
    let looked = run_shared(&disk, Mode::No);
    assert_eq!((names(&looked), looked.exit_code()), (vec!["journal_damaged".to_owned()], 4));
    assert_eq!(run_shared(&disk, Mode::Preen).exit_code(), 4);
    assert!(disk.to_bytes() == before, "nothing was changed");
    assert_eq!(run_shared(&disk, Mode::Yes).exit_code(), 1);
    assert_eq!(first_byte(&disk, block), b'o', "half a log is never used");
    assert!(look(&disk, Mode::No).findings.is_empty());
    judge::assert_clean(&disk, "dropped");
}

#[test]
fn transactions_before_the_damage_are_kept() {
    let Some((disk, block)) = with_log("-c -v 3", "jkl") else { return };
    // Each transaction is a descriptor, a copy and a commit block.
    for (at, byte, letter) in [(3, 20, b'o'), (4, 900, b'j'), (5, 7, b'j'), (6, 20, b'j'), (9, 20, b'k')] {
        let disk = Arc::new(disk.snapshot());
        let bench = Bench::new(&disk);
        bench.lab.block(bench.blocks(InodeNo::JOURNAL)[at].1, |block| block[byte] ^= 1);
        assert_eq!(names(&run_shared(&disk, Mode::No)), ["journal_damaged"], "block {at}");
        assert_eq!(run_shared(&disk, Mode::Yes).exit_code(), 1, "block {at}");
        assert_eq!(first_byte(&disk, block) as char, letter as char, "block {at}");
        assert!(look(&disk, Mode::No).findings.is_empty(), "block {at}");
        judge::assert_clean(&disk, "replayed in part");
    }
}

#[test]
fn a_volume_that_says_it_is_clean_is_checked_if_its_journal_is_damaged() {
    let Some(disk) = full() else { return };
    let disk = Arc::new(disk);
    let bench = Bench::new(&disk);
    bench.lab.block(bench.blocks(InodeNo::JOURNAL)[0].1, |block| block[..4].fill(0));
    let lazy = |mode| CheckOptions { mode, force: false, superblock: None, now: NOW };
    let shared: SharedDisk = disk.clone();
    let preened = check_volume(&shared, &lazy(Mode::Preen), &mut |_| ()).unwrap();
    assert_eq!((preened.skipped, preened.errors_left), (false, true));
    let repaired = check_volume(&shared, &lazy(Mode::Yes), &mut |_| ()).unwrap();
    assert_eq!((repaired.skipped, repaired.errors_left, repaired.exit_code()), (false, false, 1));
}

#[test]
fn an_error_of_the_journal_becomes_one_of_the_volume() {
    let Some(disk) = full() else { return };
    let disk = Arc::new(disk);
    let bench = Bench::new(&disk);
    bench.lab.block(bench.blocks(InodeNo::JOURNAL)[0].1, |block| block[0x20..0x24].fill(0xFF));
    let lazy = CheckOptions { mode: Mode::Preen, force: false, superblock: None, now: NOW };
    let shared: SharedDisk = disk.clone();
    let outcome = check_volume(&shared, &lazy, &mut |_| ()).unwrap();
    assert_eq!((names(&outcome), outcome.exit_code()), (vec!["journal_error".to_owned()], 1));
    assert!(!outcome.skipped, "the volume was checked");
    assert!(check_volume(&shared, &lazy, &mut |_| ()).unwrap().skipped);
    judge::assert_clean(&disk, "forgotten");
}

#[test]
fn what_is_not_checked_is_refused_by_name() {
    for (options, name) in [
        (&["-t", "ext4", "-O", "bigalloc"][..], "bigalloc"),
        (&["-t", "ext4", "-O", "quota"], "quota"),
        (&["-t", "ext4", "-O", "inline_data"], "inline_data"),
        (&["-t", "ext4", "-O", "ea_inode"], "ea_inode"),
    ] {
        let Some(disk) = made(options, "32M") else { return };
        let shared: SharedDisk = Arc::new(disk);
        let options = CheckOptions { mode: Mode::Yes, force: true, superblock: None, now: NOW };
        let error = check_volume(&shared, &options, &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// The shape that a damaged superblock claims is not believed where a copy says otherwise.
#[test]
fn a_superblock_with_a_wrong_checksum_gives_way_to_a_copy_of_another_shape() {
    for (at, bit) in [(0x60, 0x80), (0x64, 0x04), (0xEC, 1)] {
        let Some(disk) = full() else { return };
        let before = Bench::new(&disk).tree();
        let disk = Arc::new(disk);
        Lab::new(&disk).superblock(|raw| raw[at] ^= bit);
        assert_eq!(names(&run_shared(&disk, Mode::No))[0], "superblock_damaged", "byte {at:#x}");
        assert_eq!(run_shared(&disk, Mode::Yes).exit_code(), 1);
        assert!(Bench::new(&disk).tree() == before);
        judge::assert_clean(&disk, "superblock");
    }
}

#[test]
fn without_checksums_the_orphan_file_has_zeros_in_their_place() {
    let options = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit,orphan_file"];
    let Some(disk) = made(&options, "16M") else { return };
    let bench = Bench::new(&disk);
    bench.lab.block(bench.blocks(bench.orphan_file())[3].1, |block| block[1023] = 7);
    assert_ne!(judge::e2fsck(&disk).expect("the volume was made by its sister").code, Some(0));
    let disk = Arc::new(disk.snapshot());
    assert_eq!(names(&run_shared(&disk, Mode::No)), ["checksum"]);
    assert_eq!(run_shared(&disk, Mode::Preen).exit_code(), 1);
    judge::assert_clean(&disk, "orphan file");
}

#[test]
fn a_descriptor_beyond_any_volume_without_a_copy_ends_the_check() {
    let Some(disk) = full() else { return };
    let bench = Bench::new(&disk);
    bench.descriptor(1, |descriptor| descriptor.inode_table = BlockNo(u64::MAX));
    let (copy, offset) = bench.lab.geo.locate_descriptor_copy(GroupNo(1)).unwrap();
    bench.lab.block(copy.0, |block| block[offset] ^= 1);
    let looked = look(&disk, Mode::No);
    assert_eq!((names(&looked), looked.exit_code()), (vec!["descriptor_damaged".to_owned()], 4));
}

/// The log is where acknowledged work is: what hides its inode must not cost it.
#[test]
fn a_log_behind_a_damaged_descriptor_is_replayed() {
    let Some((disk, block)) = with_log("-c -v 3", "j") else { return };
    let before = Bench::new(&disk).tree();
    let damages: [(&str, Damage); 3] = [
        ("table", |lab| lab.block(2, |table| table.fill(0))),
        ("place of the inodes", |lab| lab.block(2, |table| table[8..12].fill(0xFF))),
        ("table and superblock", |lab| {
            lab.block(2, |table| table.fill(0));
            lab.superblock(|raw| raw.fill(0));
        }),
    ];
    for (what, damage) in damages {
        let disk = Arc::new(disk.snapshot());
        damage(&Lab::new(&disk));
        let outcome = run_shared(&disk, Mode::Yes);
        assert_eq!((outcome.exit_code(), outcome.transactions), (1, 1), "{what}: {:?}", outcome.findings);
        assert_eq!(first_byte(&disk, block), b'j', "{what}");
        assert!(Bench::new(&disk).tree().keys().eq(before.keys()), "{what}");
        judge::assert_clean(&disk, what);
    }
}

/// A damage that knows its surroundings.
type Act<'a> = &'a dyn Fn(&Bench<'_>);

/// Returns a volume of two files in the place of one with many, of which the inode tables still tell: also in a slot
/// before those of the files, which is returned as well.
fn over_another() -> Option<(MemDisk, InodeNo)> {
    if !judge::have("mke2fs") {
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (image, many, few) = (scratch.path().join("image"), scratch.path().join("many"), scratch.path().join("few"));
    fill(&many);
    fs::create_dir(&few).unwrap();
    ["one", "two", "three"].iter().for_each(|name| fs::write(few.join(name), name).unwrap());
    for tree in [many, few] {
        let base = ["-F", "-q", "-E", "nodiscard,lazy_itable_init=1", "-d", tree.to_str().unwrap()];
        let output = Command::new("mke2fs").args(base).args(FULL).arg(&image).arg("16M").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let tree = Bench::new(&MemDisk::read_from(&image).unwrap()).tree();
    let files = tree.iter().filter(|(_, (_, contents))| !contents.is_empty());
    let (name, ino) = files.map(|(name, (ino, _))| (name, *ino)).min_by_key(|(_, ino)| *ino).unwrap();
    assert_eq!(judge::run("debugfs", &["-w", "-R", &format!("rm {name}")], &image).code, Some(0));
    Some((MemDisk::read_from(&image).unwrap(), ino))
}

#[test]
fn slots_that_were_never_written_stay_free() {
    let Some((disk, gap)) = over_another() else { return };
    let before = look(&disk, Mode::No);
    assert!(before.findings.is_empty(), "{:?}", before.findings);
    let tree = Bench::new(&disk).tree();
    let files: Vec<&(InodeNo, Vec<u8>)> = tree.values().filter(|(_, contents)| !contents.is_empty()).collect();
    let (first, last) =
        (files.iter().map(|(ino, _)| *ino).min().unwrap(), files.iter().map(|(ino, _)| *ino).max().unwrap());
    assert!(files.len() == 2 && gap < first);
    let hide = |bench: &Bench<'_>| {
        // As if the slot had never been written.
        let mut older = Vec::new();
        bench.lab.slot(InodeNo(100), |slot| older = slot.to_vec());
        bench.lab.slot(gap, |slot| slot.copy_from_slice(&older));
        bench.descriptor(0, |group| group.itable_unused = bench.lab.geo.inodes_per_group - 11);
    };
    let damages: [(&str, Act<'_>); 4] = [
        ("a lost descriptor", &|bench| bench.lab.block(2, |table| table[..64].fill(0))),
        ("hidden inodes with names", &hide),
        ("hidden inodes, the last with a wrong checksum", &|bench| {
            hide(bench);
            bench.lab.slot(last, |slot| slot[0x7C] ^= 1);
        }),
        ("hidden inodes without a root", &|bench| {
            hide(bench);
            bench.lab.slot(InodeNo::ROOT, |slot| slot.fill(0));
        }),
    ];
    for (what, damage) in damages {
        let disk = Arc::new(disk.snapshot());
        damage(&Bench::new(&disk));
        let outcome = run_shared(&disk, Mode::Yes);
        assert_eq!(outcome.exit_code(), 1, "{what}: {:#?}", outcome.findings);
        // A new root takes a new lost+found.
        assert!((0..=1).contains(&(outcome.inodes_used - before.inodes_used)), "{what}: {}", outcome.inodes_used);
        let found: Vec<Vec<u8>> = Bench::new(&disk).tree().into_values().map(|(_, contents)| contents).collect();
        assert!(files.iter().all(|(_, contents)| found.contains(contents)), "{what}");
        judge::assert_clean(&disk, what);
    }
}

/// A mount refuses what makes no sense, and sends its user to the check: that must not call it clean.
#[test]
fn a_volume_that_no_mount_takes_is_never_called_clean() {
    let lazy = |mode| CheckOptions { mode, force: false, superblock: None, now: NOW };
    let damages: [(&str, Act<'_>); 3] = [
        ("orphan file without links", &|bench| bench.inode(bench.orphan_file(), |inode| inode.links = 0)),
        ("no root", &|bench| bench.lab.slot(InodeNo::ROOT, |slot| slot.fill(0))),
        ("a root that is a file", &|bench| bench.inode(InodeNo::ROOT, |inode| inode.mode = 0o100_644)),
    ];
    for (what, damage) in damages {
        let Some(disk) = full() else { return };
        let disk = Arc::new(disk);
        let shared: SharedDisk = disk.clone();
        assert!(check_volume(&shared, &lazy(Mode::Yes), &mut |_| ()).unwrap().skipped);
        damage(&Bench::new(&disk));
        let outcome = check_volume(&shared, &lazy(Mode::Yes), &mut |_| ()).unwrap();
        assert_eq!((outcome.skipped, outcome.exit_code()), (false, 1), "{what}: {:?}", outcome.findings);
        judge::assert_clean(&disk, what);
    }
}
