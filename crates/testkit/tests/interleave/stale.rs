//! A task writes blocks and fsyncs each, on a volume whose free blocks hold bytes of a file that is gone.
//!
//! Its neighbours fsync files without data. That makes metadata of both durable, and may begin while the writer records
//! where its blocks lie. The power fails just before a flush completes, when most is uncertain. Whatever survives, the
//! file shows its own bytes or zeros: a pointer that reached the disk before its data would show others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use moafs_disk::mem::MemDisk;
use moafs_disk::probe::crash::CrashRecorder;
use moafs_runtime::Task;
use moafs_testkit::family::{Ext, Ext4, F2fs, Family};
use moafs_testkit::tests_of;
use moafs_testkit::volume::Mounter;
use moafs_vfs::api::SetAttr;
use moafs_vfs::types::Ino;
use moafs_vfs::{Credentials, Format, Vfs};

use super::{check, each_seed, make_file, name_of, play, scheduler, stat_of, volume};

tests_of!([ext: Ext, ext4: Ext4, f2fs: F2fs] [appended_blocks, filled_holes]);

/// The bytes of the file that is gone.
const STALE: u8 = 0xEE;
/// Blocks that are written to the file: on ext some of them have indirect pointers.
const BLOCKS: u64 = 20;

/// Tasks that fsync files without data.
const NEIGHBOURS: u64 = 4;

/// A family whose states are sampled: to mount one takes F2FS 200 times as long as ext.
trait Sample: Family {
    /// One state in so many is judged.
    const ONE_IN: usize;
}

impl Sample for Ext {
    const ONE_IN: usize = 1;
}

impl Sample for Ext4 {
    const ONE_IN: usize = 8;
}

impl Sample for F2fs {
    const ONE_IN: usize = 128;
}

/// The size of the file before its blocks are written.
#[derive(Debug, Clone, Copy)]
enum Before {
    Empty,
    Holes,
}

fn over_stale_blocks<F: Sample>(before: Before) {
    let Some(fresh) = volume::<F>() else { return };
    let stale = Arc::new(fresh);
    leave_stale_bytes::<F>(&stale);
    each_seed(|seed| {
        let (runtime, disk) = (scheduler::<F>(seed), Arc::new(stale.snapshot()));
        let recorder = Arc::new(CrashRecorder::over(Arc::clone(&disk), runtime.rt()));
        let log = Arc::clone(&recorder);
        let first = play::<F, _>(seed, &runtime, recorder.clone(), move |rt, vfs| {
            let file = make_file(&vfs, "file");
            if matches!(before, Before::Holes) {
                let size = SetAttr { size: Some(BLOCKS * u64::from(vfs.shape().block_size)), ..SetAttr::default() };
                vfs.set_attr(&Credentials::root(), file, &size).expect("truncate");
            }
            vfs.sync().expect("sync");
            let first = log.cut_points() - 1;
            let is_over = Arc::new(AtomicBool::new(false));
            let neighbour = |number| {
                let (vfs, is_over) = (vfs.clone(), Arc::clone(&is_over));
                let file = make_file(&vfs, &format!("empty.{number}"));
                rt.spawn("neighbour", Box::new(move || change_modes(&vfs, file, &is_over)))
            };
            let neighbours: Vec<Task> = (0..NEIGHBOURS).map(neighbour).collect();
            write_blocks(&vfs, file);
            is_over.store(true, Ordering::Relaxed);
            neighbours.iter().for_each(|neighbour| neighbour.join(&**rt));
            vfs.close().expect("unmount");
            first
        });
        judge_cuts::<F>(seed, &recorder, first)?;
        check::<F>(&disk)
    });
}

/// Fills all free blocks with the bytes of a file, and removes it.
fn leave_stale_bytes<F: Family>(disk: &Arc<MemDisk>) {
    let vfs = F::mounter(0).mount(disk.clone(), false).expect("mount");
    let who = Credentials::root();
    let file = make_file(&vfs, "gone");
    let piece = [STALE; 64 << 10];
    let mut at = 0;
    while let Ok(written @ 1..) = vfs.write_what_fits(&who, file, at, &piece) {
        at += written as u64;
    }
    vfs.forget(file, 1);
    vfs.unlink(&who, vfs.shape().root, name_of("gone")).expect("unlink");
    vfs.close().expect("unmount");
}

/// Writes block after block, each with bytes of its own, and fsyncs each.
fn write_blocks<F: Format>(vfs: &Vfs<F>, file: Ino) {
    let block = vfs.shape().block_size as usize;
    for number in 0..BLOCKS {
        let bytes = vec![byte_of(number); block];
        vfs.write(&Credentials::root(), file, number * block as u64, &bytes, false).expect("write");
        vfs.fsync(file, false).expect("fsync");
    }
}

/// Changes an empty file and fsyncs it, again and again: its metadata wait for no data.
fn change_modes<F: Format>(vfs: &Vfs<F>, file: Ino, is_over: &AtomicBool) {
    let modes = [0o600, 0o644].map(|perm| SetAttr { perm: Some(perm), ..SetAttr::default() });
    for mode in modes.iter().cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
        vfs.set_attr(&Credentials::root(), file, mode).expect("chmod");
        vfs.fsync(file, false).expect("fsync");
    }
}

/// Returns the byte that fills a block of a file.
fn byte_of(number: u64) -> u8 {
    number as u8 + 1
}

/// Judges states at the cuts from `first` on: older writes are lost, newer ones have survived, or none has.
fn judge_cuts<F: Sample>(seed: u64, recorder: &CrashRecorder, first: usize) -> Result<(), String> {
    let last = recorder.cut_points() - 1;
    let cuts = (first..last).filter(|cut| recorder.uncertain(cut + 1) < recorder.uncertain(*cut));
    let states = cuts.flat_map(|cut| (1..=recorder.uncertain(cut)).map(move |lost| (cut, lost)));
    for (cut, lost) in states.skip(seed as usize % F::ONE_IN).step_by(F::ONE_IN) {
        let said = judge::<F>(seed, recorder.state_with(cut, |write, _| write >= lost));
        said.map_err(|said| format!("cut {cut} without the first {lost} uncertain writes: {said}"))?;
    }
    Ok(())
}

/// Mounts what a power cut has left, and looks for bytes that were never written to the file.
fn judge<F: Family>(seed: u64, left: MemDisk) -> Result<(), String> {
    let vfs = F::mounter(seed).mount(Arc::new(left), false).expect("mount after the cut");
    let block = vfs.shape().block_size as usize;
    let mut shown = vec![0; BLOCKS as usize * block];
    let len = vfs.read(stat_of(&vfs, "file").ino, 0, &mut shown).expect("read");
    for (number, bytes) in shown[..len].chunks(block).enumerate() {
        if let Some(byte) = bytes.iter().find(|byte| **byte != 0 && **byte != byte_of(number as u64)) {
            return Err(format!("block {number} shows {byte:#x}"));
        }
    }
    Ok(())
}

fn appended_blocks<F: Sample>() {
    over_stale_blocks::<F>(Before::Empty);
}

fn filled_holes<F: Sample>() {
    over_stale_blocks::<F>(Before::Holes);
}
