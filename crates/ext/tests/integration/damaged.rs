//! Damage that could make an op free, lose or overwrite what belongs to others. Skipped without the tools of e2fsprogs.

use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::check::{CheckOptions, Mode, Outcome, check_volume};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Rt, Timestamp};
use moafs_vfs::api::{Allocate, NewFile, RenameMode, SetAttr};
use moafs_vfs::defrag::DefragOptions;
use moafs_vfs::types::{BlockRun, Cookie, FileKind, Ino, Lbn};
use moafs_vfs::{Credentials, Format, Vfs};

use crate::image::{BLOCK, Image, ROOT, create, errno, mount, name, truncate, write};

/// A file that is to be made.
const NEW: NewFile<'_> = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };

/// Returns the first number behind `label` in the output of a tool.
fn number(text: &str, label: &str) -> u64 {
    let (_, number) = text.split_once(label).expect("the label");
    let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().expect("a number")
}

/// Returns the place of a block of a file.
fn block_of(image: &Image, file: &str, lbn: u32) -> u64 {
    number(&image.debugfs(&format!("bmap {file} {lbn}")), "")
}

/// Blocks of the volume's own that a file is said to have: neither its end nor a truncation frees them.
#[test]
fn the_volume_own_blocks_are_never_freed() {
    // The place of the file's first block in its inode.
    for (features, field) in [("extent", "block[5]"), ("^extent,^64bit", "block[0]")] {
        for owner in ["inode table", "journal", "orphan file"] {
            let features = format!("{features},orphan_file");
            let made = ["-t", "ext4", "-J", "size=1", "-O", &features];
            let Some(image) = Image::make(&made, 24 << 20) else { return };
            image.mounted(|vfs| {
                let file = create(vfs, "file");
                write(vfs, file, 0, &[1; 1000]).expect("there is space");
            });
            let block = match owner {
                "inode table" => number(&image.debugfs("imap <2>"), "located at block "),
                "journal" => block_of(&image, "<8>", 700),
                _ => block_of(&image, "<12>", 1),
            };
            image.debugfs(&format!("set_inode_field file {field} {block}"));
            for is_unlink in [false, true] {
                let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
                let vfs = mount(&mem);
                let file = vfs.lookup(&Credentials::root(), ROOT, name("file")).expect("it is there").ino;
                if is_unlink {
                    vfs.unlink(&Credentials::root(), ROOT, name("file")).expect("a name is removed");
                    vfs.forget(file, 1);
                    vfs.run_background_step();
                } else {
                    assert_eq!(errno(truncate(&vfs, file, 0)), libc::EUCLEAN);
                }
                let failed = vfs.failed().expect("damage was found");
                assert!(failed.contains("the volume's own"), "{failed}");
                drop(vfs.close());
                let copy = image.beside("copy");
                mem.write_to(&copy.path).unwrap();
                let text = copy.debugfs(&format!("testb {block}"));
                assert!(text.contains("marked in use"), "{text}");
            }
        }
    }
}

/// Makes a volume whose journal is a file with a name, in many pieces, as one that was added while the volume was
/// mounted.
fn with_named_journal() -> Option<Image> {
    let image = Image::make(&["-t", "ext4", "-J", "size=4"], 48 << 20)?;
    let contents = image.beside("contents");
    image.debugfs(&format!("dump <8> {}", contents.path.display()));
    let contents = std::fs::read(contents.path).unwrap();
    image.mounted(|vfs| {
        let (journal, spacer) = (create(vfs, ".journal"), create(vfs, "spacer"));
        assert_eq!(journal, JOURNAL);
        for (at, piece) in (0..).step_by(PIECE).zip(contents.chunks(PIECE)) {
            for file in [journal, spacer] {
                write(vfs, file, at, piece).expect("there is space");
                vfs.fsync(file, false).expect("the disk works");
            }
        }
        vfs.unlink(&Credentials::root(), ROOT, name("spacer")).expect("it is there");
        vfs.forget(spacer, 1);
    });
    image.debugfs("set_super_value journal_inum 12");
    image.debugfs("set_super_value jnl_backup_type 0");
    image.debugfs("punch <8> 0");
    image.debugfs("clri <8>");
    Some(image)
}

/// The first inode that is not reserved, and that lost+found leaves.
const JOURNAL: Ino = Ino(12);
/// Bytes of the journal that lie together.
const PIECE: usize = 256 << 10;

fn runs(vfs: &Vfs<Ext>, ino: Ino) -> Vec<(Lbn, BlockRun)> {
    let (_, node) = vfs.format().load(ino).expect("it is there");
    vfs.format().runs(&node).expect("its map is sound")
}

fn contents(vfs: &Vfs<Ext>, text: &str) -> Vec<u8> {
    let found = vfs.lookup(&Credentials::root(), ROOT, name(text)).expect("it is there");
    let mut bytes = vec![0; found.attr.size as usize];
    vfs.read(found.ino, 0, &mut bytes).expect("it can be read");
    vfs.forget(found.ino, 1);
    bytes
}

fn repair(mem: &Arc<MemDisk>, mode: Mode) -> (Outcome, Vec<String>) {
    let disk: SharedDisk = Arc::<MemDisk>::clone(mem);
    let now = Timestamp { secs: 1_700_000_000, nanos: 0 };
    let options = CheckOptions { mode, force: true, now, superblock: None };
    let outcome = check_volume(&disk, &options, &mut |_| {}).expect("it can be checked");
    let found = outcome.findings.iter().map(|finding| finding.issue.to_string()).collect();
    (outcome, found)
}

/// A journal with a name stays where it is: the log goes on to be written there.
#[test]
fn a_journal_with_a_name_is_not_changed() {
    let Some(image) = with_named_journal() else { return };
    let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
    let (vfs, root) = (mount(&mem), Credentials::root());
    let before = runs(&vfs, JOURNAL);
    assert!(before.len() > 4, "{before:?}");
    vfs.defragment(ROOT, &DefragOptions::default(), &mut |_| true).expect("it leaves the journal out");
    vfs.defragment(JOURNAL, &DefragOptions::default(), &mut |_| true).expect("it leaves the journal out");
    assert_eq!(runs(&vfs, JOURNAL), before);
    assert_eq!(contents(&vfs, ".journal").len(), 4 << 20);
    // With the flag that no program may change it, and without.
    let flags = vfs.stat(JOURNAL).expect("it is there").attr.flags;
    let clear = SetAttr { flags: Some(flags & !0x10), ..SetAttr::default() };
    assert_eq!(errno(vfs.set_attr(&root, JOURNAL, &clear)), libc::EPERM);
    assert_eq!(errno(vfs.unlink(&root, ROOT, name(".journal"))), libc::EPERM);
    assert_eq!(
        errno(vfs.rename(&root, (ROOT, name(".journal")), (ROOT, name("other")), RenameMode::Replace)),
        libc::EPERM
    );
    assert_eq!(errno(truncate(&vfs, JOURNAL, 0)), libc::EPERM);
    assert_eq!(errno(write(&vfs, JOURNAL, 0, b"x")), libc::EPERM);
    assert_eq!(errno(vfs.allocate(&root, JOURNAL, 5 << 20, 1, Allocate::Extend)), libc::EPERM);
    let file = create(&vfs, "file");
    write(&vfs, file, 0, &[7; 5000]).expect("there is space");
    vfs.fsync(file, false).expect("the disk works");
    let cut = Arc::new(mem.snapshot());
    vfs.close().expect("the volume is whole");
    for mem in [mem, cut] {
        let vfs = mount(&mem);
        assert_eq!(contents(&vfs, "file"), [7; 5000]);
        assert_eq!(runs(&vfs, JOURNAL), before);
        vfs.close().expect("the volume is whole");
    }
}

/// The orphan file stays what it is where a damaged directory has a name for it, or a list leads to it.
#[test]
fn the_orphan_file_is_not_changed() {
    let Some(image) = Image::make(&["-t", "ext4", "-J", "size=1", "-O", "orphan_file"], 24 << 20) else { return };
    image.debugfs("ln <12> orphans");
    let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
    let (vfs, root) = (mount(&mem), Credentials::root());
    let file = vfs.lookup(&root, ROOT, name("orphans")).expect("it is there").ino;
    let before = runs(&vfs, file);
    let clear = SetAttr { flags: Some(0), ..SetAttr::default() };
    assert_eq!(errno(vfs.set_attr(&root, file, &clear)), libc::EPERM);
    assert_eq!(errno(vfs.unlink(&root, ROOT, name("orphans"))), libc::EPERM);
    assert_eq!(errno(vfs.link(&root, file, ROOT, name("other"))), libc::EPERM);
    let renamed = vfs.rename(&root, (ROOT, name("orphans")), (ROOT, name("other")), RenameMode::Replace);
    assert_eq!(errno(renamed), libc::EPERM);
    assert_eq!(errno(truncate(&vfs, file, 0)), libc::EPERM);
    assert_eq!(errno(write(&vfs, file, 0, b"x")), libc::EPERM);
    vfs.defragment(ROOT, &DefragOptions::default(), &mut |_| true).expect("it leaves the file out");
    assert_eq!(runs(&vfs, file), before);
    vfs.forget(file, 1);
    vfs.close().expect("the volume is whole");
    mem.write_to(&image.path).unwrap();
    image.debugfs("unlink orphans");
    image.judge();
    image.debugfs("set_super_value last_orphan 12");
    let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
    let (disk, rt): (SharedDisk, Rt) = (Arc::<MemDisk>::clone(&mem), Live::new());
    let refused = Ext::open(disk, rt, OpenOptions::default()).err().expect("the list is damaged").to_string();
    assert!(refused.contains("which cannot be a member"), "{refused}");
    let (outcome, found) = repair(&mem, Mode::Yes);
    assert!(!outcome.errors_left, "{found:?}");
    mem.write_to(&image.path).unwrap();
    image.judge();
    assert_eq!(number(&image.debugfs("stat <12>"), "Links: "), 1);
}

/// A volume whose orphan file cannot be found is not written: its blocks could be given away.
#[test]
fn a_volume_without_its_orphan_file_is_refused() {
    for field in ["mode 040755", "links_count 0", "block[0] 7"] {
        let Some(image) = Image::make(&["-t", "ext4", "-J", "size=1", "-O", "orphan_file"], 24 << 20) else { return };
        image.debugfs(&format!("set_inode_field <12> {field}"));
        let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
        let (disk, rt): (SharedDisk, Rt) = (Arc::<MemDisk>::clone(&mem), Live::new());
        let refused = Ext::open(disk, rt, OpenOptions::default()).err().expect(field).to_string();
        assert!(refused.contains("s_orphan_file_inum") && refused.contains("fsck -y"), "{refused}");
        let (outcome, found) = repair(&mem, Mode::Yes);
        assert!(!outcome.errors_left, "{found:?}");
        mem.write_to(&image.path).unwrap();
        image.judge();
        image.mounted(|vfs| create(vfs, "file"));
    }
}

/// Without a journal no driver uses the orphan file that a volume has left: the volume is mounted all the same.
#[test]
fn a_volume_that_lost_its_journal_is_written_without_its_orphan_file() {
    let Some(image) = Image::make(&["-t", "ext3", "-J", "size=1", "-O", "orphan_file"], 24 << 20) else { return };
    image.run("tune2fs", &["-O", "^has_journal"], &[0]);
    image.mounted(|vfs| create(vfs, "file"));
    assert!(image.debugfs("stat /file").contains("Type: regular"));
}

/// The transactions in such a journal are replayed, and nothing is wrong with it.
#[test]
fn a_journal_with_a_name_is_replayed_by_a_repair() {
    let Some(image) = with_named_journal() else { return };
    let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
    assert_eq!(repair(&mem, Mode::No).1, Vec::<String>::new());
    let vfs = mount(&mem);
    let file = create(&vfs, "file");
    write(&vfs, file, 0, &[7; 5000]).expect("there is space");
    vfs.fsync(file, false).expect("the disk works");
    for mode in [Mode::Preen, Mode::Yes] {
        let cut = Arc::new(mem.snapshot());
        let (outcome, found) = repair(&cut, mode);
        assert!(outcome.transactions > 0 && !outcome.errors_left, "{outcome:?}");
        // Counts of the whole volume are not in the log.
        assert!(found.iter().all(|found| found.starts_with("the superblock counts")), "{found:?}");
        assert_eq!(repair(&cut, Mode::No).1, Vec::<String>::new());
        let vfs = mount(&cut);
        assert_eq!(contents(&vfs, "file"), [7; 5000]);
        vfs.close().expect("the volume is whole");
        cut.write_to(&image.path).unwrap();
        image.run("e2fsck", &["-fn"], &[0]);
    }
    drop(vfs);
}

/// A tree with levels and nothing in them would take extents for none.
#[test]
fn a_root_with_levels_and_no_entries_takes_no_data() {
    let Some(image) = Image::make(&["-t", "ext4", "-J", "size=1"], 24 << 20) else { return };
    image.mounted(|vfs| create(vfs, "file"));
    image.debugfs("set_inode_field file block[0] 0xf30a");
    image.debugfs("set_inode_field file block[1] 0x10004");
    let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
    let vfs = mount(&mem);
    let file = vfs.lookup(&Credentials::root(), ROOT, name("file")).expect("it is there").ino;
    let written = write(&vfs, file, 0, &[1; 3000]).and_then(|_| vfs.fsync(file, false));
    assert!(written.is_err(), "the data are nowhere");
    drop(vfs);
    let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
    let (outcome, found) = repair(&mem, Mode::Yes);
    assert!(!outcome.errors_left && found.iter().any(|found| found.contains("eh_depth is 1")), "{found:?}");
    mem.write_to(&image.path).unwrap();
    image.judge();
    image.mounted(|vfs| {
        let file = vfs.lookup(&Credentials::root(), ROOT, name("file")).expect("it is there").ino;
        write(vfs, file, 0, &[1; 3000]).expect("there is space");
        vfs.fsync(file, false).expect("the disk works");
    });
    image.judge();
}

/// A descriptor that says of inodes in use that they never were: a new inode leaves them as they are, and is made in
/// another group if there is one.
#[test]
fn a_new_inode_harms_none_that_its_descriptor_hides() {
    let made = ["-t", "ext4", "-J", "size=1", "-E", "lazy_itable_init=1"];
    for (bytes, made_at) in [(8 << 20, Err(libc::EUCLEAN)), (16 << 20, Ok(1))] {
        let Some(image) = Image::make(&made, bytes) else { return };
        ten_files(&image);
        let per_group = number(&image.debugfs("show_super_stats -h"), "Inodes per group:         ");
        hide_behind(&image, 12);
        let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
        let vfs = mount(&mem);
        let created = vfs.create(&Credentials::root(), ROOT, name("new"), &NEW).map(|new| (new.ino.0 - 1) / per_group);
        assert_eq!(created.map_err(|error| error.errno()), made_at);
        drop(vfs.close());
        mem.write_to(&image.path).unwrap();
        assert_eq!(number(&image.debugfs("stat f10"), "Size: "), 5000);
    }
}

/// A group whose inode bitmap is damaged: new inodes are made in the others.
#[test]
fn inodes_are_made_beside_a_damaged_group() {
    let Some(image) = Image::make(&["-t", "ext4", "-J", "size=1"], 24 << 20) else { return };
    let kept = image.mounted(|vfs| create(vfs, "kept"));
    let groups = image.run("dumpe2fs", &[], &[0]).expect("it comes with mke2fs");
    let (bitmap, per_group) = (number(&groups, "Inode bitmap at "), number(&groups, "Inodes per group:         "));
    let mut bytes = std::fs::read(&image.path).unwrap();
    bytes[(bitmap * BLOCK + 40) as usize] ^= 0x10;
    std::fs::write(&image.path, bytes).unwrap();
    let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
    let vfs = mount(&mem);
    let new = create(&vfs, "new");
    assert!(kept.0 <= per_group && new.0 > per_group, "{new:?}");
    write(&vfs, new, 0, &[7; 5000]).expect("there is space");
    vfs.fsync(new, false).expect("the disk works");
    assert_eq!(vfs.failed(), None);
    vfs.close().expect("what was changed is whole");
    let (outcome, found) = repair(&mem, Mode::Yes);
    assert!(!outcome.errors_left, "{found:?}");
    mem.write_to(&image.path).unwrap();
    image.judge();
    image.mounted(|vfs| assert_eq!(contents(vfs, "new"), [7; 5000]));
}

/// Blocks of two owners are copied to where no inode has its blocks, those among them that a descriptor hides.
#[test]
fn copies_of_shared_blocks_overwrite_no_hidden_inode() {
    let Some(image) = Image::make(&["-t", "ext4", "-J", "size=1"], 32 << 20) else { return };
    let source = image.beside("source");
    for (name, blocks, fill) in [("fb", 8, b'b'), ("fc", 1, b'c'), ("fa", 8, b'a')] {
        std::fs::write(&source.path, vec![fill; blocks * BLOCK as usize]).unwrap();
        image.debugfs(&format!("write {} {name}", source.path.display()));
    }
    let shared = block_of(&image, "fb", 0).to_string();
    for (field, value) in [("block[4]", "8"), ("block[5]", &shared), ("size", "8192"), ("blocks", "16")] {
        image.debugfs(&format!("set_inode_field fc {field} {value}"));
    }
    let per_group = number(&image.debugfs("show_super_stats -h"), "Inodes per group:         ");
    image.debugfs(&format!("set_bg 0 itable_unused {}", per_group - 13));
    image.debugfs("set_bg 0 checksum calc");
    let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
    let (outcome, found) = repair(&mem, Mode::Yes);
    assert!(!outcome.errors_left, "{found:?}");
    mem.write_to(&image.path).unwrap();
    image.judge();
    image.mounted(|vfs| {
        for (name, fill) in [("fa", b'a'), ("fb", b'b'), ("fc", b'b')] {
            assert!(contents(vfs, name) == [fill; 8192], "{name}");
        }
    });
}

/// Damages of the root directory, as commands of debugfs.
const ROOTS: [&[&str]; 5] = [
    &["clri <2>"],
    &["sif <2> mode 0100644"],
    &["sif <2> mode 0"],
    &["clri <2>", "clri <11>"],
    &["clri <2>", "clri <7>"],
];

/// Makes ten files of one byte each, half of them in a directory and the others behind these in the root. Returns the
/// bytes with the inodes.
fn ten_files(image: &Image) -> Vec<(u8, u64)> {
    let source = image.beside("source");
    image.debugfs("mkdir dir");
    let make = |byte: u8| {
        std::fs::write(&source.path, [byte; 5000]).unwrap();
        let name = if byte > 5 { format!("f{byte}") } else { format!("dir/f{byte}") };
        image.debugfs(&format!("write {} {name}", source.path.display()));
        (byte, number(&image.debugfs(&format!("stat {name}")), "Inode: "))
    };
    (1..=10).map(make).collect()
}

/// Has the descriptor of the first group say that no inode behind this one was ever used.
fn hide_behind(image: &Image, ino: u64) {
    let per_group = number(&image.debugfs("show_super_stats -h"), "Inodes per group:         ");
    image.debugfs(&format!("set_bg 0 itable_unused {}", per_group - ino));
    image.debugfs("set_bg 0 checksum calc");
}

/// Repairs a volume without its root: the second check finds nothing, and every file is reached from lost+found.
fn repair_without_root(image: &Image, files: &[(u8, u64)], what: &str) {
    let mem = Arc::new(MemDisk::read_from(&image.path).unwrap());
    let (outcome, found) = repair(&mem, Mode::Yes);
    assert!(!outcome.errors_left, "{what}: {found:?}");
    assert_eq!(repair(&mem, Mode::No).1, Vec::<String>::new(), "{what}");
    mem.write_to(&image.path).unwrap();
    image.judge();
    let out = image.beside("out");
    for (byte, ino) in files {
        image.debugfs(&format!("dump <{ino}> {}", out.path.display()));
        assert!(std::fs::read(&out.path).unwrap() == [*byte; 5000], "{what}: inode {ino}");
        let named = image.debugfs(&format!("ncheck {ino}"));
        assert!(named.contains("/lost+found/"), "{what}: {named}");
    }
}

/// A volume without its root gets a new one, and every file a name in lost+found, those among them that the
/// descriptors hide.
#[test]
fn a_lost_root_loses_no_file() {
    let kinds: [(&[&str], bool); 5] = [
        (&["-t", "ext2"], false),
        (&["-t", "ext3", "-J", "size=1"], false),
        (&["-t", "ext4", "-J", "size=1"], true),
        (&["-t", "ext4", "-J", "size=1", "-O", "orphan_file"], true),
        (&["-t", "ext4", "-J", "size=1", "-O", "^metadata_csum,uninit_bg"], true),
    ];
    for (kind, may_hide) in kinds {
        let Some(whole) = Image::make(kind, 24 << 20) else { return };
        let files = ten_files(&whole);
        let table = number(&whole.debugfs("imap <2>"), "located at block ");
        for is_hiding in [false, true].into_iter().filter(|is_hiding| may_hide || !is_hiding) {
            for commands in ROOTS {
                let image = whole.beside("damaged");
                std::fs::copy(&whole.path, &image.path).unwrap();
                if is_hiding {
                    hide_behind(&image, files[4].1);
                }
                commands.iter().for_each(|command| drop(image.debugfs(command)));
                repair_without_root(&image, &files, &format!("{kind:?} {is_hiding} {commands:?}"));
            }
            // The start of the inode table: with the root lie the journal, lost+found and the directory.
            let image = whole.beside("damaged");
            std::fs::copy(&whole.path, &image.path).unwrap();
            if is_hiding {
                hide_behind(&image, files[4].1);
            }
            let mut bytes = std::fs::read(&image.path).unwrap();
            bytes[(table * BLOCK) as usize..((table + 3) * BLOCK) as usize].fill(0);
            std::fs::write(&image.path, bytes).unwrap();
            repair_without_root(&image, &files, &format!("{kind:?} {is_hiding}, the start of the table"));
        }
    }
}

/// An index whose entries all lead to the same node, and its entries to the same leaf, each as if it went on with one
/// hash: a list ends.
#[test]
fn an_index_that_leads_to_one_leaf_for_ever_is_not_followed() {
    let made = ["-t", "ext4", "-J", "size=4", "-O", "^metadata_csum", "-b", "2048"];
    let Some(image) = Image::make(&made, 24 << 20) else { return };
    image.mounted(|vfs| {
        for number in 0..400 {
            vfs.forget(create(vfs, &format!("a-name-of-some-length-{number:04}")), 1);
        }
    });
    let mut bytes = std::fs::read(&image.path).unwrap();
    let mut entries = |at: usize, count: usize, block: u32| {
        for index in 0..count {
            bytes[at + 8 * index..][..4].copy_from_slice(&5u32.to_le_bytes());
            bytes[at + 8 * index + 4..][..4].copy_from_slice(&block.to_le_bytes());
        }
        bytes[at..at + 2].copy_from_slice(&(count as u16).to_le_bytes());
        bytes[at + 2..at + 4].copy_from_slice(&(count as u16).to_le_bytes());
    };
    let (root, node) = (2048 * block_of(&image, "/", 0) as usize, 2048 * block_of(&image, "/", 1) as usize);
    entries(root + 0x20, 252, 1);
    entries(node + 8, 255, 2);
    bytes[root + 0x1E] = 1;
    bytes[node..node + 8].copy_from_slice(&[0, 0, 0, 0, 0, 8, 0, 0]);
    std::fs::write(&image.path, bytes).unwrap();
    let vfs = mount(&Arc::new(MemDisk::read_from(&image.path).unwrap()));
    let mut names = 0;
    let listed = vfs.list(&Credentials::root(), ROOT, Cookie(1 << 62), &mut |_| {
        names += 1;
        true
    });
    assert_eq!((errno(listed), names), (libc::EUCLEAN, 0));
}

/// An index that leads to its own root, as if that were a leaf: no name is put over it.
#[test]
fn an_index_that_leads_to_its_root_is_given_up() {
    let made = ["-t", "ext4", "-J", "size=4", "-O", "^metadata_csum"];
    let Some(image) = Image::make(&made, 24 << 20) else { return };
    let number_of = |number: u32| format!("a-name-of-some-length-{number:04}");
    image.mounted(|vfs| (0..100).for_each(|number| vfs.forget(create(vfs, &number_of(number)), 1)));
    let root = (BLOCK * block_of(&image, "/", 0)) as usize;
    let mut bytes = std::fs::read(&image.path).unwrap();
    let count = bytes[root + 0x22].into();
    assert!(count > 1 && bytes[root + 0x1E] == 0, "an index of one level");
    (0..count).for_each(|index: usize| bytes[root + 0x24 + 8 * index..][..4].fill(0));
    std::fs::write(&image.path, bytes).unwrap();
    image.mounted(|vfs| vfs.forget(create(vfs, &number_of(100)), 1));
    image.judge();
    image.mounted(|vfs| (0..101).for_each(|number| drop(contents(vfs, &number_of(number)))));
}

/// Without the feature huge_file an inode counts its blocks in 32 bits of sectors.
#[test]
fn no_file_has_more_blocks_than_its_inode_counts() {
    for (features, most) in [("^huge_file", u64::from(u32::MAX) * 512), ("huge_file", u64::MAX)] {
        let Some(image) = Image::make(&["-t", "ext4", "-J", "size=1", "-O", features], 24 << 20) else { return };
        let is_bounded = most < u64::MAX;
        image.mounted(|vfs| {
            let max = vfs.shape().file_bytes_max;
            assert!(max < most && (max > most / 10 * 9 || !is_bounded), "{features}: {max}");
            let file = create(vfs, "file");
            write(vfs, file, 0, &[1; 1000]).expect("there is space");
        });
        image.debugfs("set_inode_field file blocks 0xffffffff");
        let vfs = mount(&Arc::new(MemDisk::read_from(&image.path).unwrap()));
        let file = vfs.lookup(&Credentials::root(), ROOT, name("file")).expect("it is there").ino;
        let allocated = vfs.allocate(&Credentials::root(), file, 1 << 20, 100_000, Allocate::Extend);
        assert_eq!(errno(allocated), if is_bounded { libc::EFBIG } else { 0 }, "{features}");
    }
}
