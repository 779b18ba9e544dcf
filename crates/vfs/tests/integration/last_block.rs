//! Formats whose size moves behind every block that is mapped: a block is mapped only when the device has the file's
//! last block before it, and a write-back never waits for itself.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use moafs_disk::probe::fault::{Harm, Rule, Victims, When};
use moafs_runtime::virt::Virtual;
use moafs_runtime::{Rt, sleep_until};
use moafs_vfs::api::SetAttr;
use moafs_vfs::types::{Ino, Lbn, Mapping};
use moafs_vfs::{Credentials, Format};

const HALF: usize = BLOCK / 2;
const PAUSE: Duration = Duration::from_millis(10);
const MOMENT: Duration = Duration::from_millis(1);
/// The sectors of the first block that the format hands out.
const FIRST: Range<u64> = BLOCK as u64 / 512..2 * BLOCK as u64 / 512;

/// Runs `test` with a new volume, in virtual time: a task that waits for itself makes it fail.
fn run(test: impl FnOnce(Arc<Volume>) + Send + 'static) {
    let virt = Virtual::new(None);
    let rt: Rt = Arc::clone(&virt) as Rt;
    virt.run(move || {
        let v = Arc::new(Volume::shaped(4096, options(), rt, |shape| shape.size_follows_map = true));
        test(Arc::clone(&v));
        v.vfs.clone().close().unwrap();
    });
}

fn at(block: usize) -> u64 {
    (block * BLOCK) as u64
}

fn is_mapped(v: &Volume, file: Ino, block: u64) -> bool {
    !matches!(v.vfs.format().map(&ToyNode(file), Lbn(block), 1).unwrap(), Mapping::Hole { .. })
}

#[test]
fn blocks_behind_the_last_one_are_mapped_when_the_device_has_that_block() {
    run(|v| {
        let f = v.create(ROOT, "f");
        v.write(f, 0, &pattern(1, HALF));
        v.vfs.sync().unwrap();
        v.fault.set(vec![Rule::new(Victims::Writes(FIRST), When::Always, Harm::Slow(PAUSE))]);
        v.write(f, HALF as u64, &pattern(2, 100));
        let here = Arc::clone(&v);
        let last_block = v.rt.spawn("last block", Box::new(move || here.vfs.fsync(f, false).unwrap()));
        sleep_until(&*v.rt, v.rt.now() + MOMENT);
        v.write(f, at(2), &pattern(3, BLOCK));
        let here = Arc::clone(&v);
        let behind_it = v.rt.spawn("behind it", Box::new(move || here.vfs.fsync(f, false).unwrap()));
        sleep_until(&*v.rt, v.rt.now() + PAUSE / 2);
        assert!(!is_mapped(&v, f, 2), "a power cut now would show what lies behind the end");
        last_block.join(&*v.rt);
        behind_it.join(&*v.rt);
        assert!(is_mapped(&v, f, 2));
        assert_eq!(v.read(f, HALF as u64, 200), [pattern(2, 100), vec![0; 100]].concat());
    });
}

#[test]
fn a_last_block_that_the_host_had_no_room_for_is_written_before_what_lies_behind_it_is_mapped() {
    run(|v| {
        let f = v.create(ROOT, "f");
        v.write(f, 0, &pattern(1, HALF));
        v.vfs.sync().unwrap();
        v.write(f, at(2), &pattern(3, BLOCK));
        // The first try fails at once, the second takes a while.
        let full = Rule::new(Victims::Writes(FIRST), When::Nth(1), Harm::HostFull);
        let slow = Rule::new(Victims::Writes(FIRST), When::From(1), Harm::Slow(PAUSE));
        v.fault.set(vec![full, slow]);
        let here = Arc::clone(&v);
        let sync = v.rt.spawn("fsync", Box::new(move || here.vfs.fsync(f, false).unwrap()));
        sleep_until(&*v.rt, v.rt.now() + PAUSE / 2);
        assert!(!is_mapped(&v, f, 2), "a power cut now would show what lies behind the end");
        sync.join(&*v.rt);
        assert!(is_mapped(&v, f, 2));
    });
}

#[test]
fn nothing_is_mapped_behind_a_last_block_that_the_host_has_no_room_for() {
    run(|v| {
        let f = v.create(ROOT, "f");
        v.write(f, 0, &pattern(1, HALF));
        v.vfs.sync().unwrap();
        v.fault.set(vec![Rule::new(Victims::Writes(FIRST), When::Always, Harm::HostFull)]);
        v.write(f, HALF as u64, &pattern(2, 100));
        v.write(f, at(2), &pattern(3, BLOCK));
        v.vfs.fsync(f, false).unwrap_err();
        assert!(!is_mapped(&v, f, 2), "a power cut now would show what lies behind the end");
        v.fault.set(Vec::new());
        v.vfs.fsync(f, false).unwrap();
        assert!(is_mapped(&v, f, 2));
        assert_eq!(v.read(f, at(2), BLOCK), pattern(3, BLOCK));
    });
}

#[test]
fn a_range_is_placed_though_the_last_block_that_it_waits_for_waited_with_it() {
    run(|v| {
        let f = v.create(ROOT, "f");
        let size = SetAttr { size: Some(HALF as u64), ..SetAttr::default() };
        v.vfs.set_attr(&Credentials::root(), f, &size).unwrap();
        v.vfs.sync().unwrap();
        // The file ends in a hole. Block 0 fills it, but is not written. Half of block 2 is: nothing lies behind the
        // end of a hole.
        v.fault.set(vec![Rule::new(Victims::Writes(FIRST), When::Always, Harm::HostFull)]);
        v.write(f, 0, &pattern(1, HALF));
        v.write(f, at(2), &pattern(2, HALF));
        v.vfs.fsync(f, false).unwrap_err();
        assert_eq!([0, 2].map(|block| is_mapped(&v, f, block)), [false, true]);
        // Blocks 2 and 4 wait for block 0, in one batch with it. Then the file ends within block 2, as far as the
        // device has it: block 4 waits for that.
        v.fault.set(Vec::new());
        v.write(f, at(4), &pattern(3, BLOCK));
        v.vfs.fsync(f, false).unwrap();
        assert_eq!([0, 2, 4].map(|block| is_mapped(&v, f, block)), [true; 3]);
        v.vfs.shrink(0);
        assert_eq!(v.read(f, at(2), HALF), pattern(2, HALF));
        assert_eq!(v.read(f, at(4), BLOCK), pattern(3, BLOCK));
    });
}
