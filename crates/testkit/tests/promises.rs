//! Promises of `docs/consistency.md` that a single small case shows.

use std::sync::Arc;
use std::time::Duration;

use moafs_disk::mem::MemDisk;
use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_runtime::virt::Virtual;
use moafs_runtime::{Live, sleep_until};
use moafs_testkit::family::{self, Ext, Ext4, F2fs, Family};
use moafs_testkit::judges::missing;
use moafs_testkit::tests_of;
use moafs_testkit::volume::{Mounter, options};
use moafs_vfs::api::{NewFile, RenameMode, SetAttr};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Options, Vfs};

tests_of!(
    ext: Ext,
    names_reach_the_disk_at_the_commit_interval_and_data_when_they_are_old,
    a_full_volume_takes_names_as_soon_as_a_file_was_removed,
    bytes_behind_a_truncation_are_not_shown_when_the_file_grows,
);
tests_of!(
    ext4: Ext4,
    names_reach_the_disk_at_the_commit_interval_and_data_when_they_are_old,
    a_full_volume_takes_names_as_soon_as_a_file_was_removed,
    bytes_behind_a_truncation_are_not_shown_when_the_file_grows,
);
tests_of!(
    f2fs: F2fs,
    names_reach_the_disk_at_the_commit_interval_and_data_when_they_are_old,
    a_full_volume_takes_names_as_soon_as_a_file_was_removed,
    bytes_behind_a_truncation_are_not_shown_when_the_file_grows,
);

fn user() -> Credentials {
    Credentials::root()
}

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

fn make<F: Format>(vfs: &Vfs<F>, dir: Ino, text: &str, kind: FileKind) -> moafs_vfs::Result<Ino> {
    let new = NewFile { kind, perm: 0o755, umask: 0, rdev: 0, target: None };
    let ino = vfs.create(&user(), dir, name(text), &new)?.ino;
    vfs.forget(ino, 1);
    Ok(ino)
}

fn find<F: Format>(vfs: &Vfs<F>, dir: Ino, text: &str) -> Option<Ino> {
    let ino = vfs.lookup(&user(), dir, name(text)).ok()?.ino;
    vfs.forget(ino, 1);
    Some(ino)
}

fn contents<F: Format>(vfs: &Vfs<F>, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0; vfs.stat(ino).expect("it is there").attr.size as usize];
    let read = vfs.read(ino, 0, &mut bytes).expect("it can be read");
    bytes.truncate(read);
    bytes
}

/// Returns a fresh volume of one of the small geometries; `None` if the tool for it is missing.
fn fresh<F: Family>(geometry: &str) -> Option<Arc<MemDisk>> {
    let made = F::make(&family::geometry::<F>(geometry).expect("a geometry"));
    if made.is_none() {
        missing(geometry, "the tool that makes it is not installed");
    }
    made.map(Arc::new)
}

/// Returns the name of the last small geometry, which our own mkfs makes.
fn small<F: Family>() -> &'static str {
    F::CRASH.last().expect("there are some")
}

fn names_reach_the_disk_at_the_commit_interval_and_data_when_they_are_old<F: Family>() {
    let Some(disk) = fresh::<F>(small::<F>()) else { return };
    let (commit_interval, dirty_age) = (Duration::from_secs(5), Duration::from_secs(30));
    let virt = Virtual::new(None);
    let states = virt.run(|| {
        let rt = virt.rt();
        let recorder = Arc::new(CrashRecorder::over(disk, rt.clone()));
        let options = Options { syncer: true, commit_interval, dirty_age, ..options(false) };
        let vfs = F::mounter(0).mount_on(recorder.clone(), rt.clone(), options).expect("it mounts");
        let root = vfs.shape().root;
        let began = rt.now();
        let dir = make(&vfs, root, "dir", FileKind::Directory).expect("there is room");
        let file = make(&vfs, dir, "file", FileKind::Regular).expect("there is room");
        vfs.write(&user(), file, 0, &[7; 9000], false).expect("there is room");
        // With the time that a turn of the syncer takes.
        let states = [commit_interval * 2, dirty_age + commit_interval * 2].map(|age| {
            sleep_until(&*rt, began + age);
            recorder.state(recorder.cut_points() - 1, 0, Mode::None)
        });
        vfs.close().expect("it unmounts");
        states
    });
    for (state, written) in states.into_iter().zip([false, true]) {
        let vfs = F::mounter(0).mount(Arc::new(state), false).expect("it mounts");
        let dir = find(&vfs, vfs.shape().root, "dir").expect("the directory is there");
        let file = find(&vfs, dir, "file").expect("the file is there");
        assert!(!written || contents(&vfs, file) == [7; 9000], "old data are there");
        vfs.close().expect("it unmounts");
    }
}

fn a_full_volume_takes_names_as_soon_as_a_file_was_removed<F: Family>() {
    let Some(disk) = fresh::<F>(small::<F>()) else { return };
    let vfs = F::mounter(0).mount(disk, false).expect("it mounts");
    let root = vfs.shape().root;
    let mut files = Vec::new();
    let mut bytes = 64 << 10;
    while bytes > 0 {
        let text = format!("file{}", files.len());
        let Ok(ino) = make(&vfs, root, &text, FileKind::Regular) else { break };
        files.push(text);
        let written = vfs.write(&user(), ino, 0, &vec![9; bytes], false).and_then(|_| vfs.fsync(ino, false));
        if written.is_err() {
            bytes /= 4;
        }
    }
    assert!(files.len() > 20, "{} files", files.len());
    for (number, text) in files.iter().take(20).enumerate() {
        vfs.unlink(&user(), root, name(text)).expect("deleting works");
        let (new, renamed) = (format!("new{number}"), format!("renamed{number}"));
        make(&vfs, root, &new, FileKind::Regular).expect("a name finds room");
        vfs.rename(&user(), (root, name(&new)), (root, name(&renamed)), RenameMode::Replace)
            .expect("a rename finds room");
    }
    vfs.close().expect("it unmounts");
}

#[test]
fn bytes_of_an_interrupted_append_are_not_shown_when_the_file_grows() {
    let Some(disk) = fresh::<Ext>("crash-4k") else { return };
    let mounter = Ext::mounter(0);
    let root = {
        let vfs = mounter.mount(disk.clone(), false).expect("it mounts");
        let root = vfs.shape().root;
        let file = make(&vfs, root, "file", FileKind::Regular).expect("there is room");
        vfs.write(&user(), file, 0, &[1; 100], false).expect("there is room");
        vfs.close().expect("it unmounts");
        root
    };
    // An append that is cut anywhere.
    let first = recorded(&mounter, &disk, |vfs| {
        let file = find(vfs, root, "file").expect("it is there");
        vfs.write(&user(), file, 100, &[0xEE; 3000], false).expect("there is room");
        vfs.fsync(file, false).expect("the disk works");
    });
    let mut interrupted = 0;
    for cut in 0..first.cut_points() {
        let state = Arc::new(first.state(cut, 0, Mode::All));
        let vfs = mounter.mount(Arc::new(state.snapshot()), true).expect("it mounts");
        if find(&vfs, root, "file").map(|file| vfs.stat(file).expect("it is there").attr.size) != Some(100) {
            continue;
        }
        interrupted += 1;
        // The file grows, and again the power fails anywhere.
        let second = recorded(&mounter, &state, |vfs| {
            let file = find(vfs, root, "file").expect("it is there");
            vfs.set_attr(&user(), file, &SetAttr { size: Some(2500), ..SetAttr::default() }).expect("it can grow");
            vfs.write(&user(), file, 2400, &[2; 500], false).expect("there is room");
            vfs.fsync(file, false).expect("the disk works");
        });
        for (again, mode) in
            (0..second.cut_points()).flat_map(|cut| [(cut, Mode::None), (cut, Mode::All), (cut, Mode::Subset)])
        {
            let vfs = mounter.mount(Arc::new(second.state(again, 7, mode)), false).expect("it mounts");
            let file = find(&vfs, root, "file").expect("it is there");
            let shown = contents(&vfs, file);
            assert!(!shown.contains(&0xEE), "cut {cut}, then {again} with {mode:?}: {} bytes", shown.len());
        }
    }
    assert!(interrupted > 0, "no cut left the append without its size");
}

/// A file is cut, grows again within its last block, and the power fails anywhere.
fn bytes_behind_a_truncation_are_not_shown_when_the_file_grows<F: Family>() {
    let Some(disk) = fresh::<F>(small::<F>()) else { return };
    let mounter = F::mounter(1);
    let root = {
        let vfs = mounter.mount(disk.clone(), false).expect("it mounts");
        let root = vfs.shape().root;
        let file = make(&vfs, root, "file", FileKind::Regular).expect("there is room");
        vfs.write(&user(), file, 0, &[0xEE; 1000], false).expect("there is room");
        vfs.close().expect("it unmounts");
        root
    };
    let log = recorded(&mounter, &disk, |vfs| {
        let file = find(vfs, root, "file").expect("it is there");
        vfs.set_attr(&user(), file, &SetAttr { size: Some(100), ..SetAttr::default() }).expect("it can shrink");
        vfs.write(&user(), file, 100, &[2; 500], false).expect("there is room");
        vfs.fsync(file, false).expect("the disk works");
    });
    for cut in 0..log.cut_points() {
        for seed in 0..8 {
            let vfs = mounter.mount(Arc::new(log.state(cut, seed, Mode::Subset)), false).expect("it mounts");
            let shown = contents(&vfs, find(&vfs, root, "file").expect("it is there"));
            let is_whole = shown.len() == 1000 && shown.iter().all(|byte| [0, 2, 0xEE].contains(byte));
            let grown = shown.get(100..).unwrap_or_default();
            assert!(is_whole || !grown.contains(&0xEE), "cut {cut}, seed {seed}: {} bytes", shown.len());
        }
    }
}

/// Records what `work` asks of a copy of the disk.
fn recorded<M: Mounter>(mounter: &M, disk: &MemDisk, work: impl FnOnce(&Vfs<M::Format>)) -> Arc<CrashRecorder> {
    let recorder = Arc::new(CrashRecorder::over(Arc::new(disk.snapshot()), Live::new()));
    let vfs = mounter.mount(recorder.clone(), false).expect("it mounts");
    work(&vfs);
    recorder
}

#[test]
fn a_mount_for_reading_only_shows_the_checkpoint_of_f2fs() {
    let Some(disk) = fresh::<F2fs>(small::<F2fs>()) else { return };
    let mounter = F2fs::mounter(0);
    let vfs = mounter.mount(disk.clone(), false).expect("it mounts");
    let root = vfs.shape().root;
    make(&vfs, root, "old", FileKind::Regular).expect("there is room");
    vfs.sync().expect("a sync");
    let file = make(&vfs, root, "new", FileKind::Regular).expect("there is room");
    vfs.write(&user(), file, 0, b"contents", false).expect("there is room");
    vfs.fsync(file, false).expect("an fsync");
    let cut = Arc::new(disk.snapshot());
    drop(vfs);
    let vfs = mounter.mount(cut.clone(), true).expect("it mounts");
    assert!(find(&vfs, root, "old").is_some() && find(&vfs, root, "new").is_none());
    vfs.close().expect("it unmounts");
    let vfs = mounter.mount(cut, false).expect("it mounts");
    assert_eq!(contents(&vfs, find(&vfs, root, "new").expect("it rolls forward")), b"contents");
    vfs.close().expect("it unmounts");
}
