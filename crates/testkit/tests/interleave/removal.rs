//! Removal of a file beside calls that look for it.

use std::sync::Arc;

use moafs_testkit::family::{Ext, Ext4, F2fs, Family};
use moafs_testkit::tests_of;
use moafs_vfs::Credentials;

use super::{check, each_seed, make_file, name_of, play, scheduler, volume};

tests_of!([ext: Ext, ext4: Ext4, f2fs: F2fs] [a_file_that_is_found_by_its_number]);

/// Blocks of the file.
const BLOCKS: usize = 5;

/// Calls beside the removal, and rounds of background work in which it takes place.
const CALLS: usize = 20;

/// Removes a file while one task asks for it by its number, as a file handle does, and another commits.
fn a_file_that_is_found_by_its_number<F: Family>() {
    let Some(fresh) = volume::<F>() else { return };
    each_seed(|seed| {
        let (runtime, disk) = (scheduler::<F>(seed), Arc::new(fresh.snapshot()));
        play::<F, _>(seed, &runtime, disk.clone(), move |rt, vfs| {
            let (root, user) = (vfs.shape().root, Credentials::root());
            let file = make_file(&vfs, "file");
            let bytes = vec![7; BLOCKS * vfs.shape().block_size as usize];
            vfs.write(&user, file, 0, &bytes, false).expect("write");
            vfs.sync().expect("sync");
            vfs.forget(file, 1);
            vfs.unlink(&user, root, name_of("file")).expect("unlink");
            let [seeker, reaper] = [vfs.clone(), vfs.clone()];
            let seek = move || (0..CALLS).for_each(|_| assert!(seeker.find(file).is_err(), "the file has no name"));
            let reap = move || (0..CALLS).for_each(|_| reaper.run_background_step());
            let tasks = [rt.spawn("seek", Box::new(seek)), rt.spawn("reap", Box::new(reap))];
            vfs.sync().expect("sync");
            tasks.iter().for_each(|task| task.join(&**rt));
            make_file(&vfs, "next");
            vfs.close().expect("unmount");
        });
        check::<F>(&disk)
    });
}
