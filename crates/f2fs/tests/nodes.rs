//! Nodes, inodes, directories and attributes against the reference tools: volumes that `sload.f2fs`
//! wrote are read back, and volumes that this crate wrote must satisfy `fsck.f2fs` and `dump.f2fs`.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use moafs_f2fs::format::checkpoint::Pack;
use moafs_f2fs::format::dentry::{self, Region};
use moafs_f2fs::format::inode::{self, Inline, Inode, Layout};
use moafs_f2fs::format::nat::{self, NAT_PER_BLOCK, NatEntry};
use moafs_f2fs::format::node::{self, Footer};
use moafs_f2fs::format::superblock::{Features, Superblock};
use moafs_f2fs::format::{BLOCK, BlkAddr, Nid, SEGMENT_BLOCKS, xattr};
use moafs_vfs::types::{FileKind, SetMode, XattrKey};
use tempfile::TempDir;

const IMAGE_BYTES: u64 = 128 << 20;
/// Reaches into the first indirect node of any inode.
const BIG_BLOCKS: usize = 3200;
/// Fits into any inode. On volumes with flexible inline attributes sload.f2fs 1.15 lays larger files out as if there
/// were none, then reserves their room: the blocks behind are lost.
const BIG_BLOCKS_FLEXIBLE: usize = 860;
/// `i_ext`, which this crate never keeps.
const CACHED_EXTENT: Range<usize> = 348..360;
/// Several levels of the hash table.
const MANY_FILES: usize = 1500;
const FEATURES: [&str; 3] = [
    "",
    "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum,lost_found",
    "extra_attr,project_quota,inode_crtime",
];

/// Runs a tool; returns its exit code and everything it printed.
fn run(tool: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(tool).args(arguments).stdin(Stdio::null()).output().expect("the tool starts");
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

fn have_tools() -> bool {
    let have = |tool: &&str| Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let missing = ["mkfs.f2fs", "sload.f2fs", "fsck.f2fs", "dump.f2fs"].into_iter().find(|tool| !have(tool));
    if let Some(tool) = missing {
        eprintln!("SKIPPED: {tool} is not installed (package f2fs-tools)");
    }
    missing.is_none()
}

/// Makes a tree with every kind of file that the reference tool loads.
fn make_source(at: &Path, big_blocks: usize) {
    let write = |name: &str, contents: &[u8]| fs::write(at.join(name), contents).expect("a source file is written");
    for directory in ["many", "deep/er/est", "empty"] {
        fs::create_dir_all(at.join(directory)).expect("a source directory is made");
    }
    write("small", b"a few bytes");
    for empty in ["nothing", "device", "large-device"] {
        write(empty, b"");
    }
    write("inline-end", &[7; 3000]);
    write("block", &[9; 4000]);
    write("deep/er/est/leaf", b"leaf");
    write(&"L".repeat(255), b"a long name");
    let big: Vec<u8> = (0..big_blocks * BLOCK).map(|at| (at / BLOCK * 31 + at % 251) as u8).collect();
    write("big", &big);
    for number in 0..MANY_FILES {
        write(&format!("many/file-number-{number}"), b"");
    }
    symlink("small", at.join("link")).expect("a symbolic link is made");
    symlink("t".repeat(300), at.join("long-link")).expect("a symbolic link is made");
}

/// An image that the reference tools made and filled.
struct Loaded {
    directory: TempDir,
}

impl Loaded {
    fn new(features: &str) -> Loaded {
        let loaded = Loaded { directory: TempDir::new().expect("a temporary directory") };
        let flexible = features.contains("flexible");
        make_source(&loaded.source(), if flexible { BIG_BLOCKS_FLEXIBLE } else { BIG_BLOCKS });
        fs::File::create(loaded.image()).and_then(|image| image.set_len(IMAGE_BYTES)).expect("an image is made");
        let (image, source) = (loaded.image(), loaded.source());
        let (image, source) = (image.to_str().expect("a plain path"), source.to_str().expect("a plain path"));
        let options =
            if features.is_empty() { vec!["-q", "-f", image] } else { vec!["-q", "-f", "-O", features, image] };
        let (code, text) = run("mkfs.f2fs", &options);
        assert_eq!(code, Some(0), "{text}");
        // Exit code 1: the tool corrected the checksums that it had left behind.
        let (code, text) = run("sload.f2fs", &["-f", source, image]);
        assert!(matches!(code, Some(0 | 1)), "{code:?} {text}");
        loaded.check();
        loaded
    }

    fn source(&self) -> std::path::PathBuf {
        let at = self.directory.path().join("source");
        fs::create_dir_all(&at).expect("a directory is made");
        at
    }

    fn image(&self) -> std::path::PathBuf {
        self.directory.path().join("image")
    }

    /// Fails if the reference checker complains.
    fn check(&self) {
        let (code, text) = run("fsck.f2fs", &["--dry-run", self.image().to_str().expect("a plain path")]);
        let complains = ["[Fail]", "[ASSERT]", "[FIX]", "Mismatch"].into_iter().any(|word| text.contains(word));
        assert!(code == Some(0) && !complains, "{code:?} {text}");
    }
}

/// A volume in memory, looked at through the codecs.
struct Volume {
    bytes: Vec<u8>,
    superblock: Superblock,
    pack: Pack,
}

impl Volume {
    fn open(image: &Path) -> Volume {
        let bytes = fs::read(image).expect("the image is read");
        let superblock = Superblock::decode(&bytes[..BLOCK], 0).expect("a superblock");
        let geo = superblock.geometry();
        let packs = (0..2).filter_map(|pack| {
            let start = geo.pack_at(pack).0 as usize * BLOCK;
            Pack::decode(&bytes[start..start + SEGMENT_BLOCKS * BLOCK], &geo, pack as u8).ok()
        });
        let pack = packs.max_by_key(|pack| pack.checkpoint.version).expect("a checkpoint");
        Volume { bytes, superblock, pack }
    }

    fn flexible(&self) -> bool {
        self.superblock.features.contains(Features::FLEXIBLE_INLINE_XATTR)
    }

    fn block(&self, at: BlkAddr) -> &[u8] {
        &self.bytes[at.0 as usize * BLOCK..][..BLOCK]
    }

    fn block_mut(&mut self, at: BlkAddr) -> &mut [u8] {
        &mut self.bytes[at.0 as usize * BLOCK..][..BLOCK]
    }

    fn nat(&self, nid: Nid) -> NatEntry {
        if let Some((_, entry)) = self.pack.nat_journal.iter().find(|(journalled, _)| *journalled == nid) {
            return *entry;
        }
        let (block, index) = (nid.0 as usize / NAT_PER_BLOCK, nid.0 as usize % NAT_PER_BLOCK);
        let second = self.pack.checkpoint.nat_bitmap.get(block);
        nat::entry(self.block(self.superblock.geometry().nat_at(block as u32, second)), index)
    }

    fn node(&self, nid: Nid, ino: Nid) -> (&[u8], Footer) {
        let entry = self.nat(nid);
        assert_eq!(entry.ino, ino, "the owner of node {nid}");
        let block = self.block(entry.addr);
        (block, Footer::decode_of(block, nid, ino).expect("the node that the table names"))
    }

    fn inode(&self, ino: Nid) -> (&[u8], Inode, Layout) {
        let (block, _) = self.node(ino, ino);
        let inode = Inode::decode(block, ino, self.superblock.features).expect("an inode");
        let layout = inode.layout(self.flexible());
        (block, inode, layout)
    }

    /// Returns the address of file block `lbn`, by the way of [`node::path`].
    fn address(&self, ino: Nid, lbn: u64) -> BlkAddr {
        let (mut block, _, layout) = self.inode(ino);
        let path = node::path(lbn, layout.addresses()).expect("a block that files can have");
        let mut next = path.steps.first().map_or(Nid::NONE, |step| inode::nid_slot(block, step.slot.into()));
        for (index, step) in path.steps.iter().enumerate() {
            if next == Nid::NONE {
                return BlkAddr::NULL;
            }
            let (node, footer) = self.node(next, ino);
            assert_eq!(footer.offset, step.offset, "the offset of node {next}");
            block = node;
            next = path.steps.get(index + 1).map_or(Nid::NONE, |step| node::nid(block, step.slot.into()));
        }
        match path.steps.is_empty() {
            true => layout.addr(block, path.slot.into()),
            false => node::addr(block, path.slot.into()),
        }
    }

    fn contents(&self, ino: Nid) -> Vec<u8> {
        let (block, inode, layout) = self.inode(ino);
        if inode.inline.contains(Inline::DATA) {
            return block[layout.inline_range()][..inode.size as usize].to_vec();
        }
        let blocks = 0..inode.size.div_ceil(BLOCK as u64);
        let mut contents: Vec<u8> = blocks
            .flat_map(|lbn| match self.address(ino, lbn) {
                at if at.is_real() => self.block(at).to_vec(),
                _ => vec![0; BLOCK],
            })
            .collect();
        contents.truncate(inode.size as usize);
        contents
    }

    /// Returns all entries of a directory; every one must be where a lookup finds it.
    fn list(&self, ino: Nid) -> BTreeMap<Vec<u8>, (Nid, FileKind)> {
        let (_, directory, _) = self.inode(ino);
        let mut names = BTreeMap::new();
        for lbn in 0..directory.size / BLOCK as u64 {
            let at = self.address(ino, lbn);
            if !at.is_real() {
                continue;
            }
            let (level, _) = dentry::bucket_of(lbn, directory.dir_level).expect("a level");
            assert!(level < directory.current_depth);
            for entry in dentry::entries(self.block(at), &Region::BLOCK) {
                let entry = entry.expect("an entry");
                assert_eq!(entry.hash, dentry::hash(entry.name), "{}", entry.name.escape_ascii());
                if !entry.is_dot() {
                    assert!(dentry::bucket_blocks(level, directory.dir_level, entry.hash).contains(&lbn));
                }
                names.insert(entry.name.to_vec(), (entry.ino, entry.kind.expect("a kind")));
            }
        }
        names
    }

    /// Returns the block and slot of a name, searched as the hash table wants it.
    fn lookup(&self, ino: Nid, name: &[u8]) -> Option<(BlkAddr, usize, Nid)> {
        let (_, directory, _) = self.inode(ino);
        let hash = dentry::hash(name);
        let lbns = (0..directory.current_depth).flat_map(|l| dentry::bucket_blocks(l, directory.dir_level, hash));
        lbns.map(|lbn| self.address(ino, lbn)).filter(|at| at.is_real()).find_map(|at| {
            let entry = dentry::find(self.block(at), &Region::BLOCK, hash, name).expect("sound entries")?;
            Some((at, entry.slot, entry.ino))
        })
    }

    fn ino_of(&self, name: &str) -> Nid {
        self.lookup(Nid::ROOT, name.as_bytes()).expect("a name in the root directory").2
    }

    /// Compares a directory, and everything below it, with what was loaded.
    fn compare(&self, ino: Nid, parent: Nid, source: &Path) {
        let mut names = self.list(ino);
        assert_eq!(names.remove(&b"."[..]), Some((ino, FileKind::Directory)));
        assert_eq!(names.remove(&b".."[..]), Some((parent, FileKind::Directory)));
        names.remove(&b"lost+found"[..]);
        for entry in fs::read_dir(source).expect("the source is listed") {
            let entry = entry.expect("the source is listed");
            let (name, path) = (entry.file_name(), entry.path());
            let (child, kind) = names.remove(name.as_bytes()).unwrap_or_else(|| panic!("{name:?} is missing"));
            assert_eq!(self.lookup(ino, name.as_bytes()).map(|found| found.2), Some(child));
            let (_, inode, _) = self.inode(child);
            assert_eq!((inode.kind, inode.pino, &*inode.name), (kind, ino, name.as_bytes()));
            match kind {
                FileKind::Directory => self.compare(child, ino, &path),
                FileKind::Symlink => {
                    let target = fs::read_link(&path).expect("a symbolic link");
                    assert_eq!(self.contents(child), target.as_os_str().as_bytes());
                }
                _ => assert!(self.contents(child) == fs::read(&path).expect("a file"), "the contents of {name:?}"),
            }
        }
        assert!(names.is_empty(), "more than was loaded: {names:?}");
    }

    /// Returns every inode that the table lists.
    fn inodes(&self) -> Vec<Nid> {
        let nids = (Nid::ROOT.0..20_000).map(Nid);
        nids.filter(|&nid| self.nat(nid).addr.is_real() && self.nat(nid).ino == nid).collect()
    }

    /// Changes an inode in place: its fields, and then the block as the new layout has it.
    fn change(&mut self, ino: Nid, fields: impl FnOnce(&mut Inode), bytes: impl FnOnce(&mut [u8], Layout)) {
        let (_, mut inode, _) = self.inode(ino);
        fields(&mut inode);
        let (layout, uuid, at) = (inode.layout(self.flexible()), self.superblock.uuid, self.nat(ino).addr);
        let checksums = self.superblock.features.contains(Features::INODE_CHECKSUM);
        let block = self.block_mut(at);
        inode.encode_into(block);
        bytes(block, layout);
        if checksums {
            inode::seal_checksum(block, &uuid);
        }
    }

    fn change_kind(&mut self, name: &str, kind: FileKind) -> Nid {
        let (at, slot, ino) = self.lookup(Nid::ROOT, name.as_bytes()).expect("a name in the root directory");
        dentry::point(self.block_mut(at), &Region::BLOCK, slot, ino, kind);
        ino
    }
}

fn set_kind(inode: &mut Inode, kind: FileKind) {
    inode.kind = kind;
    inode.mode = kind.mode_bits() as u16 | 0o755;
    inode.inline -= Inline::DATA | Inline::DATA_EXIST;
}

#[test]
fn what_the_reference_tool_loaded_is_read_back() {
    if !have_tools() {
        return;
    }
    for features in FEATURES {
        let loaded = Loaded::new(features);
        let volume = Volume::open(&loaded.image());
        volume.compare(Nid::ROOT, Nid::ROOT, &loaded.source());
        let (_, root) = volume.node(Nid::ROOT, Nid::ROOT);
        assert!(!root.cold && root.is_inode() && root.offset == 0);
    }
}

#[test]
fn inodes_of_the_reference_tool_are_written_back_byte_for_byte() {
    if !have_tools() {
        return;
    }
    for features in FEATURES {
        let loaded = Loaded::new(features);
        let volume = Volume::open(&loaded.image());
        let inodes = volume.inodes();
        assert!(inodes.len() > MANY_FILES);
        for ino in inodes {
            let (block, inode, layout) = volume.inode(ino);
            let mut written = block.to_vec();
            inode.encode_into(&mut written);
            Footer::decode(block).encode_into(&mut written);
            let mut expected = block.to_vec();
            expected[CACHED_EXTENT].fill(0);
            assert!(written == expected, "inode {ino} with features {features:?}");
            assert_eq!(Layout::of(block, volume.flexible()), layout);
            if volume.superblock.features.contains(Features::INODE_CHECKSUM) {
                assert!(inode::has_checksum(block));
                assert_eq!(
                    inode::verify_checksum(block, &volume.superblock.uuid, volume.superblock.features),
                    Ok(()),
                    "inode {ino}"
                );
            }
        }
    }
}

#[test]
fn what_is_written_satisfies_the_reference_tools() {
    if !have_tools() {
        return;
    }
    for features in FEATURES {
        let loaded = Loaded::new(features);
        let mut volume = Volume::open(&loaded.image());
        rename_a_link(&mut volume);
        make_devices(&mut volume);
        make_inline_directory(&mut volume);
        let described = describe(&mut volume);
        fs::write(loaded.image(), &volume.bytes).expect("the image is written");
        loaded.check();
        let image = loaded.image();
        let (_, text) =
            run("dump.f2fs", &["-i", &format!("{:#x}", described.0), image.to_str().expect("a plain path")]);
        for word in ["e_name_index:1 e_name:comment", "e_value_size:12", "e_name_index:2", "tag:0x20 perm:0x4"] {
            assert!(text.contains(word), "{word} is not in {text}");
        }
    }
}

fn rename_a_link(volume: &mut Volume) {
    let (at, slot, ino) = volume.lookup(Nid::ROOT, b"link").expect("the link");
    let name = b"a link with another name";
    let block = volume.block_mut(at);
    dentry::remove(block, &Region::BLOCK, slot);
    let room = dentry::room(block, &Region::BLOCK, dentry::slots_of(name.len())).expect("room in the root directory");
    dentry::insert(block, &Region::BLOCK, room, dentry::hash(name), ino, FileKind::Symlink, name);
    volume.change(ino, |inode| inode.name = (*name).into(), |_, _| ());
}

fn make_devices(volume: &mut Volume) {
    for (name, kind, major, minor) in
        [("device", FileKind::CharDevice, 5, 1), ("large-device", FileKind::BlockDevice, 259, 300)]
    {
        let ino = volume.change_kind(name, kind);
        volume.change(
            ino,
            |inode| set_kind(inode, kind),
            |block, layout| {
                block[layout.addr_range()].fill(0);
                layout.set_device(block, major, minor);
            },
        );
    }
}

/// Makes an empty file a directory with inline entries, one of them a second name of another file.
fn make_inline_directory(volume: &mut Volume) {
    let small = volume.ino_of("small");
    let ino = volume.change_kind("nothing", FileKind::Directory);
    let fields = |inode: &mut Inode| {
        set_kind(inode, FileKind::Directory);
        inode.inline |= Inline::DENTRY;
        (inode.links, inode.current_depth) = (2, 1);
    };
    volume.change(ino, fields, |block, layout| {
        block[layout.addr_range()].fill(0);
        let region = Region::inline(layout.inline_range());
        dentry::format_dots(block, &region, ino, Nid::ROOT);
        let name = b"a second name of the small file";
        let slot = dentry::room(block, &region, dentry::slots_of(name.len())).expect("room");
        dentry::insert(block, &region, slot, dentry::hash(name), small, FileKind::Regular, name);
        inode::set_size(block, layout.inline_range().len() as u64);
        Footer { cold: false, ..Footer::decode(block) }.encode_into(block);
    });
    volume.change(small, |inode| inode.links += 1, |_, _| ());
    volume.change(Nid::ROOT, |inode| inode.links += 1, |_, _| ());
}

/// Gives a file attributes, inline, and returns it.
fn describe(volume: &mut Volume) -> Nid {
    let ino = volume.ino_of("small");
    let acl =
        [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255];
    let mut attributes = Vec::new();
    for (name, value) in [(&b"user.comment"[..], &b"twelve bytes"[..]), (b"system.posix_acl_access", &acl)] {
        let key = XattrKey::parse(name).expect("a key");
        xattr::set(&mut attributes, &key, Some(value), SetMode::Create).expect("a new attribute");
    }
    volume.change(
        ino,
        |inode| inode.inline |= Inline::XATTR,
        |block, layout| {
            let range = layout.inline_xattr_range();
            block[range.clone()].copy_from_slice(&xattr::encode(&attributes, range.len()).expect("room"));
        },
    );
    let (block, _, layout) = volume.inode(ino);
    assert_eq!(xattr::decode(&block[layout.inline_xattr_range()]), Ok(attributes));
    ino
}
