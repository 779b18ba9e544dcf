//! Callers that take the last blocks and inodes of a volume.

use std::sync::Arc;
use std::sync::mpsc::channel;

use moafs_disk::mem::MemDisk;
use moafs_testkit::family::{Ext, Ext4, F2fs, Family};
use moafs_testkit::tests_of;
use moafs_vfs::api::{NewFile, SetAttr};
use moafs_vfs::types::FileKind;
use moafs_vfs::{Credentials, Format, Vfs};

use super::{FormatOf, check, each_seed, make_file, name_of, play, scheduler, volume};

tests_of!([ext: Ext, ext4: Ext4, f2fs: F2fs] [the_last_blocks_are_given_once, a_removed_file_makes_way_for_another]);

/// Tasks that make inodes, and the inodes that each wants.
const CALLERS: usize = 3;
const WANTED: usize = 12;
/// Blocks that are left when they begin: fewer than they want.
const LEFT: u64 = 8;

/// Files that each of them replaces on a volume without a free inode.
const REPLACED: usize = 4;

/// Makes a pipe, if there is space for it.
fn make_pipe<F: Format>(vfs: &Vfs<F>, name: &str) -> moafs_vfs::Result<()> {
    let new = NewFile { kind: FileKind::Fifo, perm: 0o644, umask: 0, rdev: 0, target: None };
    let stat = vfs.create(&Credentials::root(), vfs.shape().root, name_of(name), &new)?;
    vfs.forget(stat.ino, 1);
    Ok(())
}

/// Fills the volume, then takes a few blocks off the file that fills it.
fn fill<F: Format>(vfs: &Vfs<F>) {
    let (file, block) = (make_file(vfs, "filler"), vfs.shape().block_size);
    let root = Credentials::root();
    let data = vec![7; block as usize];
    let written = |at: &u64| vfs.write(&root, file, at * u64::from(block), &data, false).is_ok();
    let blocks = (0..).take_while(written).count() as u64;
    vfs.sync().expect("sync");
    let size = Some((blocks - LEFT) * u64::from(block));
    vfs.set_attr(&root, file, &SetAttr { size, ..SetAttr::default() }).expect("truncate");
    vfs.sync().expect("sync");
}

/// Returns a volume that was filled by `fill`; `None` if the tool that makes it is missing.
fn filled<F: Family>(fill: fn(&Vfs<FormatOf<F>>)) -> Option<Arc<MemDisk>> {
    let (runtime, disk) = (scheduler::<F>(0), Arc::new(volume::<F>()?));
    play::<F, _>(0, &runtime, disk.clone(), move |_, vfs| {
        fill(&vfs);
        vfs.close().expect("unmount");
    });
    Some(disk)
}

fn the_last_blocks_are_given_once<F: Family>() {
    let Some(filled) = filled::<F>(fill) else { return };
    each_seed(|seed| {
        let (runtime, disk) = (scheduler::<F>(seed), Arc::new(filled.snapshot()));
        let ended = play::<F, _>(seed, &runtime, disk.clone(), |rt, vfs| {
            let start = |caller: usize| {
                let vfs = vfs.clone();
                // Refusals but for the lack of space are told by the sync below.
                let work = move || {
                    for number in 0..WANTED {
                        let _ = make_pipe(&vfs, &format!("{caller}-{number}"));
                    }
                };
                rt.spawn("caller", Box::new(work))
            };
            let callers: Vec<_> = (0..CALLERS).map(start).collect();
            callers.iter().for_each(|caller| caller.join(&**rt));
            vfs.sync().and_then(|()| vfs.close()).map_err(|error| error.to_string())
        });
        ended.and_then(|()| check::<F>(&disk))
    });
}

fn numbered(number: usize) -> String {
    format!("pipe{number:05}")
}

/// Makes files until no inode is left.
fn fill_inodes<F: Format>(vfs: &Vfs<F>) {
    let made = (0..).take_while(|number| make_pipe(vfs, &numbered(*number)).is_ok()).count();
    assert!(made > CALLERS * REPLACED, "the volume is full after {made} files");
}

fn a_removed_file_makes_way_for_another<F: Family>() {
    let Some(filled) = filled::<F>(fill_inodes) else { return };
    each_seed(|seed| {
        let (runtime, disk) = (scheduler::<F>(seed), Arc::new(filled.snapshot()));
        let ended = play::<F, _>(seed, &runtime, disk.clone(), |rt, vfs| {
            let (ended, replaced) = channel();
            let start = |caller: usize| {
                let (vfs, ended) = (vfs.clone(), ended.clone());
                let replace = move |number: usize| {
                    let name = numbered(caller * REPLACED + number);
                    vfs.unlink(&Credentials::root(), vfs.shape().root, name_of(&name))?;
                    make_pipe(&vfs, &name)
                };
                let work = move || {
                    let _ = ended.send((0..REPLACED).try_for_each(replace));
                };
                rt.spawn("caller", Box::new(work))
            };
            let callers: Vec<_> = (0..CALLERS).map(start).collect();
            callers.iter().for_each(|caller| caller.join(&**rt));
            drop(ended);
            let done = replaced.iter().try_for_each(|done| done);
            done.and_then(|()| vfs.sync()).and_then(|()| vfs.close()).map_err(|error| error.to_string())
        });
        ended.and_then(|()| check::<F>(&disk))
    });
}
