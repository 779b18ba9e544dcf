//! Tests of the front on a volume in memory, with the calls that requests of the kernel make, but without a kernel.

use std::sync::Arc;

use moafs_disk::probe::fault::{Fault, Harm, Rule, Victims, When};
use moafs_disk::{MemDisk, SharedDisk};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_ext::{Ext, OpenOptions};
use moafs_fuse::{
    CopyRange, CreateArgs, DeviceNumber, DirBuf, DirPlusBuf, Errno, FallocateMode, FileHandle, FileSystem, NodeId,
    RenameFlags, ReqCtx, SeekTarget, SetAttr, WriteFlags, XattrFlags,
};
use moafs_mount::identity::Overrides;
use moafs_mount::medium::Medium;
use moafs_mount::swap::KernelSwap;
use moafs_mount::{Front, Identity, Log};
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::api::NewFile;
use moafs_vfs::types::{FileKind, Name};
use moafs_vfs::{Credentials, Options, Vfs};

const VOLUME_SECTORS: u64 = 32 << 11;
const NO_HANDLE: FileHandle = FileHandle(0);

fn front() -> Front<Ext> {
    front_over(Arc::new(new_volume()))
}

fn new_volume() -> MemDisk {
    let disk = MemDisk::new(VOLUME_SECTORS);
    mkfs(&disk, &MkfsOptions::new([1; 16], [2; 16], Timestamp::new(1_000_000_000, 0))).unwrap();
    disk
}

/// Opens the volume on a disk.
fn front_over(disk: SharedDisk) -> Front<Ext> {
    let rt = Live::new();
    let ext = Ext::open(disk.clone(), rt.clone(), OpenOptions::default()).unwrap();
    let vfs = Vfs::new(ext, disk.clone(), rt, Options { syncer: false, ..Options::default() });
    let stats = Box::new(|_| b"{}\n".to_vec());
    let log = Arc::new(Log::new("test"));
    let swap = Arc::new(KernelSwap::new(vfs.clone(), disk, Medium::Unknown, "/nowhere".into(), Arc::clone(&log)));
    Front::new(vfs, vec![("stats", stats)], swap, log)
}

fn at(node: NodeId) -> ReqCtx {
    ReqCtx { unique: 1, node, uid: 0, gid: 0, pid: 1 }
}

fn create(front: &Front<Ext>, name: &str) -> NodeId {
    let mode = libc::S_IFREG | 0o644;
    front.mknod(&at(NodeId::ROOT), name.as_bytes(), mode, DeviceNumber(0), 0).unwrap().node
}

#[test]
fn the_root_has_fuse_s_number_and_the_volume_s_inode() {
    let front = front();
    let root = front.getattr(&at(NodeId::ROOT), None).unwrap().attr;
    assert_eq!((root.ino, root.mode & libc::S_IFMT), (2, libc::S_IFDIR));
    // Inode 1 of ext2 lists bad blocks: it is neither a file nor the root.
    assert!(front.getattr(&at(NodeId(2)), None).is_err_and(|errno| errno != Errno::EIO));
}

#[test]
fn a_missing_name_is_remembered_and_a_found_one_too() {
    let front = front();
    let missing = front.lookup(&at(NodeId::ROOT), b"file").unwrap();
    assert!(missing.node == NodeId::NONE && missing.entry_ttl > std::time::Duration::from_secs(3600));
    let node = create(&front, "file");
    let found = front.lookup(&at(NodeId::ROOT), b"file").unwrap();
    assert!(found.node == node && found.attr_ttl == missing.entry_ttl);
}

#[test]
fn an_unlinked_file_lives_until_its_last_look_up_is_forgotten() {
    let front = front();
    let node = create(&front, "file");
    front.lookup(&at(NodeId::ROOT), b"file").unwrap();
    front.write(&at(node), NO_HANDLE, 0, b"contents", WriteFlags::empty()).unwrap();
    front.unlink(&at(NodeId::ROOT), b"file").unwrap();
    front.forget(node, 1);
    let mut out = [0; 16];
    assert_eq!(front.read(&at(node), NO_HANDLE, 0, &mut out), Ok(8));
    front.forget(node, 1);
    front.vfs().run_background_step();
    assert!(front.getattr(&at(node), None).is_err());
}

#[test]
fn new_files_are_made_with_mknod_alone() {
    let front = front();
    let args = CreateArgs { mode: libc::S_IFREG | 0o644, ..CreateArgs::default() };
    assert_eq!(front.create(&at(NodeId::ROOT), b"file", &args).unwrap_err(), Errno::ENOSYS);
    create(&front, "file");
    let again = front.mknod(&at(NodeId::ROOT), b"file", libc::S_IFREG | 0o644, DeviceNumber(0), 0);
    assert_eq!(again.unwrap_err(), Errno::EEXIST);
    let typeless = front.mknod(&at(NodeId::ROOT), b"other", 0o644, DeviceNumber(0), 0);
    assert_eq!(typeless.unwrap_err(), Errno::EINVAL);
}

#[test]
fn setting_nothing_is_legal_and_sets_nothing() {
    let front = front();
    let node = create(&front, "file");
    let before = front.getattr(&at(node), None).unwrap().attr;
    let after = front.setattr(&at(node), &SetAttr::default()).unwrap().attr;
    assert_eq!((before.mode, before.mtime, before.size), (after.mode, after.mtime, after.size));
}

#[test]
fn set_id_bits_go_where_the_kernel_demands_it_also_for_root() {
    let front = front();
    let node = create(&front, "file");
    let mode = |front: &Front<Ext>| front.getattr(&at(node), None).unwrap().attr.mode & 0o7777;
    front.setattr(&at(node), &SetAttr { mode: Some(0o6755), ..SetAttr::default() }).unwrap();
    front.write(&at(node), NO_HANDLE, 0, b"x", WriteFlags::empty()).unwrap();
    assert_eq!(mode(&front), 0o6755);
    front.write(&at(node), NO_HANDLE, 0, b"x", WriteFlags::KILL_SUIDGID).unwrap();
    assert_eq!(mode(&front), 0o755);
    front.setattr(&at(node), &SetAttr { mode: Some(0o4711), ..SetAttr::default() }).unwrap();
    front.setattr(&at(node), &SetAttr { kill_suidgid: true, ..SetAttr::default() }).unwrap();
    assert_eq!(mode(&front), 0o711);
}

#[test]
fn only_the_owner_takes_set_ids_away_by_a_change_of_nothing() {
    let front = front();
    let node = create(&front, "file");
    front.setattr(&at(node), &SetAttr { uid: Some(5), gid: Some(5), ..SetAttr::default() }).unwrap();
    front.setattr(&at(node), &SetAttr { mode: Some(0o4755), ..SetAttr::default() }).unwrap();
    let by = |uid| ReqCtx { uid, gid: uid, ..at(node) };
    assert_eq!(front.setattr(&by(6), &SetAttr::default()).unwrap().attr.mode & 0o7777, 0o4755);
    assert_eq!(front.setattr(&by(5), &SetAttr::default()).unwrap().attr.mode & 0o7777, 0o755);
}

#[test]
fn the_owner_that_is_shown_may_do_what_the_stored_one_may() {
    const ANN: u32 = 1000;
    let overrides = Overrides { uid: Some(ANN), gid: Some(ANN), umask: Some(0o022) };
    let front = front().with_identity(Identity::Overridden(overrides));
    let by_ann = |node| ReqCtx { uid: ANN, gid: ANN, ..at(node) };
    let stored = |front: &Front<Ext>, name: &str| {
        let name = moafs_vfs::types::Name::new(name.as_bytes()).unwrap();
        let attr = front.vfs().lookup(&moafs_vfs::Credentials::root(), moafs_vfs::types::Ino(2), name).unwrap().attr;
        (attr.uid, attr.gid, attr.perm)
    };
    // The root directory is root's, and sticky: only owners set attributes there.
    let root = moafs_vfs::types::Ino(2);
    let sticky = moafs_vfs::api::SetAttr { perm: Some(0o1700), ..Default::default() };
    front.vfs().set_attr(&moafs_vfs::Credentials::root(), root, &sticky).unwrap();
    front.setxattr(&by_ann(NodeId::ROOT), b"user.x", b"1", XattrFlags::empty()).unwrap();
    let shown = front.getattr(&at(NodeId::ROOT), None).unwrap().attr;
    assert_eq!((shown.uid, shown.gid, shown.mode & 0o7777), (ANN, ANN, 0o755));

    let mode = libc::S_IFREG | 0o4711;
    let node = front.mknod(&by_ann(NodeId::ROOT), b"file", mode, DeviceNumber(0), 0o77).unwrap().node;
    assert_eq!(stored(&front, "file"), (ANN, ANN, 0o700));
    let chmod = |mode| front.setattr(&by_ann(node), &SetAttr { mode: Some(mode), ..SetAttr::default() });
    assert_eq!(chmod(0o6600).unwrap().attr.mode & 0o7777, 0o755, "stored, not shown");
    assert_eq!(stored(&front, "file"), (ANN, ANN, 0o600));
    let chown = |uid| front.setattr(&by_ann(node), &SetAttr { uid: Some(uid), ..SetAttr::default() }).map(drop);
    assert_eq!((chown(ANN), chown(0)), (Ok(()), Err(Errno::EPERM)));

    // Set-ids that the volume has are not seen by the kernel, which therefore asks for nothing.
    let ino = front.vfs().lookup(&moafs_vfs::Credentials::root(), root, moafs_vfs::types::Name::new(b"file").unwrap());
    let set = moafs_vfs::api::SetAttr { perm: Some(0o4755), ..Default::default() };
    front.vfs().set_attr(&moafs_vfs::Credentials::root(), ino.unwrap().ino, &set).unwrap();
    front.write(&by_ann(node), NO_HANDLE, 0, b"x", WriteFlags::empty()).unwrap();
    assert_eq!(stored(&front, "file"), (ANN, ANN, 0o755));
    let acl = front.setxattr(&by_ann(node), b"system.posix_acl_access", b"", XattrFlags::empty());
    assert_eq!(acl, Err(Errno::EOPNOTSUPP));
}

#[test]
fn a_fake_root_gives_files_away_and_keeps_what_it_makes() {
    const ANN: u32 = 1000;
    let front = front().with_identity(Identity::FakeRoot);
    let by_ann = |node| ReqCtx { uid: ANN, gid: ANN, ..at(node) };
    let mode = libc::S_IFREG | 0o644;
    let made = front.mknod(&by_ann(NodeId::ROOT), b"file", mode, DeviceNumber(0), 0).unwrap();
    assert_eq!((made.attr.uid, made.attr.gid), (ANN, ANN));
    let set = |set: SetAttr| front.setattr(&by_ann(made.node), &set).unwrap().attr;
    let given = set(SetAttr { uid: Some(0), gid: Some(5), ..SetAttr::default() });
    assert_eq!((given.uid, given.gid), (0, 5));
    assert_eq!(set(SetAttr { mode: Some(0o4755), ..SetAttr::default() }).mode & 0o7777, 0o4755);
    // Of another user, and in a sticky directory: only root may.
    let sticky = SetAttr { mode: Some(0o1755), ..SetAttr::default() };
    front.setattr(&by_ann(NodeId::ROOT), &sticky).unwrap();
    front.setxattr(&by_ann(NodeId::ROOT), b"user.x", b"1", XattrFlags::empty()).unwrap();
    assert!(front.lookup(&by_ann(NodeId::ROOT), b".moafs").unwrap().attr.uid != ANN, "the host's files are the host's");
}

#[test]
fn rename_flags_do_what_they_say() {
    let front = front();
    let (one, two) = (create(&front, "one"), create(&front, "two"));
    let rename = |from: &str, to: &str, flags| {
        front.rename(&at(NodeId::ROOT), from.as_bytes(), NodeId::ROOT, to.as_bytes(), flags)
    };
    assert_eq!(rename("one", "two", RenameFlags::NOREPLACE), Err(Errno::EEXIST));
    rename("one", "two", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(front.lookup(&at(NodeId::ROOT), b"one").unwrap().node, two);
    assert_eq!(front.lookup(&at(NodeId::ROOT), b"two").unwrap().node, one);
    rename("two", "three", RenameFlags::WHITEOUT).unwrap();
    assert_eq!(front.lookup(&at(NodeId::ROOT), b"three").unwrap().node, one);
    let whiteout = front.lookup(&at(NodeId::ROOT), b"two").unwrap().attr;
    assert_eq!((whiteout.mode, whiteout.rdev, whiteout.nlink), (libc::S_IFCHR, DeviceNumber(0), 1));
}

#[test]
fn holes_are_punched_found_and_copied_around() {
    let front = front();
    let node = create(&front, "file");
    front.write(&at(node), NO_HANDLE, 0, &[5; 64 << 10], WriteFlags::empty()).unwrap();
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    front.fallocate(&at(node), NO_HANDLE, 16 << 10, 16 << 10, punch).unwrap();
    assert_eq!(front.lseek(&at(node), NO_HANDLE, 0, SeekTarget::Hole), Ok(16 << 10));
    assert_eq!(front.lseek(&at(node), NO_HANDLE, 16 << 10, SeekTarget::Data), Ok(32 << 10));
    assert_eq!(front.lseek(&at(node), NO_HANDLE, 1 << 20, SeekTarget::Data), Err(Errno::ENXIO));
    let copy = create(&front, "copy");
    let range = CopyRange {
        fh_in: NO_HANDLE,
        offset_in: 0,
        node_out: copy,
        fh_out: NO_HANDLE,
        offset_out: 0,
        len: 64 << 10,
        flags: 0,
    };
    assert_eq!(front.copy_file_range(&at(node), &range), Ok(64 << 10));
    let mut out = vec![1; 64 << 10];
    assert_eq!(front.read(&at(copy), NO_HANDLE, 0, &mut out), Ok(64 << 10));
    assert!(out[..16 << 10].iter().all(|&byte| byte == 5) && out[16 << 10..32 << 10].iter().all(|&byte| byte == 0));
}

#[test]
fn attributes_answer_their_length_and_their_value() {
    let front = front();
    let node = create(&front, "file");
    front.setxattr(&at(node), b"user.colour", b"green", XattrFlags::CREATE).unwrap();
    let again = front.setxattr(&at(node), b"user.colour", b"red", XattrFlags::CREATE);
    assert_eq!(again, Err(Errno::EEXIST));
    let mut out = [0; 32];
    assert_eq!(front.getxattr(&at(node), b"user.colour", &mut []), Ok(5));
    assert_eq!(front.getxattr(&at(node), b"user.colour", &mut out), Ok(5));
    assert_eq!(&out[..5], b"green");
    assert_eq!(front.listxattr(&at(node), &mut out), Ok(12));
    assert_eq!(&out[..12], b"user.colour\0");
    front.removexattr(&at(node), b"user.colour").unwrap();
    assert_eq!(front.getxattr(&at(node), b"user.colour", &mut out), Err(Errno::ENODATA));
}

#[test]
fn the_control_directory_takes_no_changes() {
    let front = front();
    let dir = front.lookup(&at(NodeId::ROOT), b".moafs").unwrap();
    let stats = front.lookup(&at(dir.node), b"stats").unwrap();
    let mut out = [0; 8];
    assert_eq!(front.read(&at(stats.node), NO_HANDLE, 0, &mut out), Ok(3));
    let write = front.write(&at(stats.node), NO_HANDLE, 0, b"x", WriteFlags::empty());
    assert_eq!(write, Err(Errno::EPERM));
    assert_eq!(front.setattr(&at(stats.node), &SetAttr::default()).unwrap_err(), Errno::EPERM);
    assert_eq!(front.mkdir(&at(NodeId::ROOT), b".moafs", 0o755, 0).unwrap_err(), Errno::EEXIST);
    assert_eq!(front.unlink(&at(dir.node), b"stats"), Err(Errno::EPERM));
    assert_eq!(front.link(&at(NodeId::ROOT), stats.node, b"name").unwrap_err(), Errno::EPERM);
    assert_eq!(front.fsync(&at(stats.node), NO_HANDLE, false), Ok(()));
}

/// Returns the text of `.moafs/defrag` as an open sees it.
fn defrag_status(front: &Front<Ext>, dir: NodeId) -> String {
    let file = front.lookup(&at(dir), b"defrag").unwrap();
    let mut text = vec![0; file.attr.size as usize];
    assert_eq!(front.read(&at(file.node), NO_HANDLE, 0, &mut text), Ok(text.len()));
    front.forget(file.node, 1);
    String::from_utf8(text).unwrap()
}

#[test]
fn a_command_starts_a_job_whose_end_can_be_read() {
    let front = front();
    create(&front, "file");
    let dir = front.lookup(&at(NodeId::ROOT), b".moafs").unwrap().node;
    let file = front.lookup(&at(dir), b"defrag").unwrap().node;
    let command = |text: &str| front.write(&at(file), NO_HANDLE, 0, text.as_bytes(), WriteFlags::empty());
    let start = r#"{"start": {"token": 9, "inode": 2}}"#;
    assert_eq!(command(start), Ok(start.len()));
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while defrag_status(&front, dir).contains("\"running\": true") {
        assert!(std::time::Instant::now() < until, "the job does not end");
        std::thread::yield_now();
    }
    let status = defrag_status(&front, dir);
    assert!(status.contains("\"token\": 9") && status.contains("\"ending\": \"done\""), "{status}");
    let stop = r#"{"stop": {"token": 9}}"#;
    assert_eq!(command(stop), Ok(stop.len()), "it may have ended already");
    assert_eq!(command(r#"{"start": {"token": 9}}"#), Err(Errno::EINVAL));
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    assert!(front.setattr(&at(file), &cut).is_ok(), "a shell cuts what it writes to");
    // Closing the volume ends a job that still runs.
    assert_eq!(command(start), Ok(start.len()));
    front.destroy();
    assert!(matches!(front.closed(), Some(Ok(()))));
    assert!(defrag_status(&front, dir).contains("\"running\": false"));
}

#[test]
fn destroy_closes_the_volume() {
    let front = front();
    create(&front, "file");
    assert!(front.closed().is_none());
    front.destroy();
    assert!(matches!(front.closed(), Some(Ok(()))));
}

/// Returns a number of a reply.
#[expect(clippy::host_endian_bytes, reason = "the kernel reads it in the machine's byte order")]
fn long(reply: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(reply[at..at + 8].try_into().unwrap())
}

/// Returns a shorter number of a reply.
#[expect(clippy::host_endian_bytes, reason = "the kernel reads it in the machine's byte order")]
fn word(reply: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(reply[at..at + 4].try_into().unwrap())
}

/// The names that a listing with attributes replied, each with its node; node 0 for those without attributes.
fn listed(reply: &[u8]) -> Vec<(String, NodeId)> {
    const NODE_BYTES: usize = 128;
    let mut names = Vec::new();
    let mut rest = reply;
    while !rest.is_empty() {
        let node = long(rest, 0);
        let name_len = word(rest, NODE_BYTES + 16) as usize;
        let name_at = NODE_BYTES + 24;
        names.push((String::from_utf8(rest[name_at..name_at + name_len].to_vec()).unwrap(), NodeId(node)));
        rest = &rest[(name_at + name_len).next_multiple_of(8)..];
    }
    names
}

fn list_plus(front: &Front<Ext>, offset: u64) -> Result<Vec<(String, NodeId)>, Errno> {
    Ok(listed(&list_raw(front, offset)?))
}

fn list_raw(front: &Front<Ext>, offset: u64) -> Result<Vec<u8>, Errno> {
    let mut reply = vec![0; 64 << 10];
    let mut out = DirPlusBuf::new(&mut reply);
    front.readdirplus(&at(NodeId::ROOT), NO_HANDLE, offset, &mut out)?;
    let len = out.finish()?;
    reply.truncate(len);
    Ok(reply)
}

#[test]
fn a_file_of_the_volume_does_not_take_the_place_of_the_control_directory() {
    let front = front();
    create(&front, "before");
    let name = Name::new(b".moafs").unwrap();
    let new = NewFile { kind: FileKind::Symlink, perm: 0o777, umask: 0, rdev: 0, target: Some(b"/etc") };
    let (root, vfs) = (front.vfs().shape().root, front.vfs());
    let link = vfs.create(&Credentials::root(), root, name, &new).unwrap();
    vfs.forget(link.ino, 1);
    create(&front, "behind");
    let names: Vec<String> = list_plus(&front, 0).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [".", "..", "lost+found", "before", "behind"]);
    let mut reply = vec![0; 4096];
    let mut out = DirBuf::new(&mut reply);
    front.readdir(&at(NodeId::ROOT), NO_HANDLE, 0, &mut out).unwrap();
    let len = out.finish().unwrap();
    assert!(!reply[..len].windows(6).any(|bytes| bytes == b".moafs"));
    assert!(front.lookup(&at(NodeId::ROOT), b".moafs").unwrap().node.0 >= 1 << 62);
    // It has no hold: its removal frees it.
    vfs.unlink(&Credentials::root(), root, name).unwrap();
    vfs.run_background_step();
    assert!(vfs.stat(link.ino).is_err());
}

/// Makes a volume whose root has `files` files, with names so long that it takes several blocks.
fn many_files(files: usize) -> SharedDisk {
    let disk: SharedDisk = Arc::new(new_volume());
    let front = front_over(Arc::clone(&disk));
    (0..files).for_each(|number| _ = create(&front, &long_name(number)));
    front.destroy();
    disk
}

fn long_name(number: usize) -> String {
    format!("{number:0>200}")
}

#[test]
fn a_listing_that_meets_an_unreadable_block_tells_what_it_has_looked_up_before() {
    const FILES: usize = 100;
    let disk = many_files(FILES);
    let mut before = 0;
    for failing in 1.. {
        let fault = Arc::new(Fault::new(Arc::clone(&disk), Live::new(), Vec::new()));
        let front = front_over(fault.clone());
        fault.set(vec![Rule::new(Victims::Reads(0..u64::MAX), When::From(failing), Harm::Error)]);
        // An answer with an error carries no entry, and the kernel would not know of the look-ups.
        let listed = list_plus(&front, 0).unwrap_or_default();
        let told = listed.iter().filter(|(_, node)| *node != NodeId::NONE).count();
        assert!(
            told >= before,
            "reads fail from number {failing} on: {told} files are told, {before} with one read less"
        );
        before = told;
        if fault.hits() == 0 {
            assert!(told >= FILES, "{told} files");
            return;
        }
    }
}

#[test]
fn fsync_of_the_root_makes_everything_durable_where_sync_does_not_arrive() {
    let front = front();
    let syncs = |front: &Front<Ext>| front.vfs().counters().syncs;
    front.fsyncdir(&at(NodeId::ROOT), NO_HANDLE, false).unwrap();
    assert_eq!(syncs(&front), 0);
    front.sync_all_by_root();
    front.fsyncdir(&at(NodeId::ROOT), NO_HANDLE, false).unwrap();
    assert_eq!(syncs(&front), 1);
    let node = create(&front, "file");
    front.fsync(&at(node), NO_HANDLE, false).unwrap();
    assert_eq!(syncs(&front), 1, "a file is synced alone");
}

#[test]
fn attributes_in_listings_expire_at_once_where_the_kernel_does_not_order_them() {
    let front = front();
    // Seconds for which the first entry with attributes is valid: its name and its attributes.
    let validity = |front: &Front<Ext>| {
        let reply = list_raw(front, 0).unwrap();
        let dots = 2 * (128 + 24 + 8);
        let seconds = |at: usize| long(&reply, dots + at);
        (seconds(16) > 0, seconds(24) > 0)
    };
    assert_eq!(validity(&front), (true, true));
    front.tell_no_attributes_by_listings();
    assert_eq!(validity(&front), (true, false));
}
