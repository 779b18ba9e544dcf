//! Directories with an index, as their blocks are.

use moafs_disk::probe::fault::{Fault, Harm, Rule, Victims, When};

use super::*;
use crate::format::inode::InodeFlags;

#[test]
fn a_leaf_that_is_cut_keeps_no_copies_of_the_names_that_moved() {
    let volume = Volume::with(FeatureSet::EXT4, 1024, 16);
    let dir = volume.create(&volume.root.clone(), "dir", FileKind::Directory, None);
    for number in 0..300 {
        volume.create(&dir, &format!("name-{number:04}"), FileKind::Regular, None);
    }
    let blocks = volume.ext.index(&dir).unwrap().as_ref().expect("index() builds it").blocks.clone();
    assert!(blocks.len() > 4, "leaves were cut: {} blocks", blocks.len());
    let copies = |block: &u64| {
        let block = volume.ext.meta.get(*block, Kind::Directory).unwrap();
        block.view(|bytes| bytes.windows(5).filter(|bytes| bytes == b"name-").count())
    };
    assert_eq!(blocks.iter().map(copies).sum::<usize>(), 300);
}

/// A volume with a directory whose index has nodes below its root, on a disk that fails on demand.
struct Deep {
    volume: Volume,
    disk: Arc<Fault>,
    dir: Node,
}

impl Deep {
    fn make() -> Deep {
        let mut volume = Volume::with(FeatureSet::EXT4, 1024, 16);
        let disk = Arc::new(Fault::new(volume.mem.clone(), Live::new(), Vec::new()));
        volume.ext.close().unwrap();
        volume.ext = Ext::open(disk.clone(), Live::new(), OpenOptions::default()).unwrap();
        volume.root = volume.ext.load(Ino(2)).unwrap().1;
        let dir = volume.create(&volume.root, "dir", FileKind::Directory, None);
        for number in 0..600 {
            volume.create(&dir, &format!("{number:0>200}"), FileKind::Regular, None);
        }
        volume.ext.commit(CommitReason::Sync).unwrap();
        volume.ext.meta.settle_log().unwrap();
        Deep { volume, disk, dir }
    }

    /// Returns the first block of the node through which the index leads to a name.
    fn node_of(&self, text: &str) -> u64 {
        let index = self.volume.ext.index(&self.dir).unwrap();
        let index = index.as_ref().expect("index() builds it");
        let way = self.volume.ext.way_to(&self.dir, index, text.as_bytes()).unwrap().expect("the index is whole");
        assert!(way.steps.len() > 1, "the index has nodes below its root");
        index.blocks[way.steps[1].lbn as usize]
    }

    /// Has reads of a block fail that no longer is in memory.
    fn spoil(&self, block: u64) {
        self.volume.ext.meta.shrink(0);
        assert!(self.volume.ext.meta.cached(block).is_none());
        let sectors = self.volume.ext.geo.block_bytes() as u64 / 512;
        let victims = Victims::Reads(block * sectors..(block + 1) * sectors);
        self.disk.set(vec![Rule::new(victims, When::Always, Harm::Error)]);
    }

    /// Ends the use of the volume, and returns it opened once more.
    fn reopen(self) -> Volume {
        self.disk.set(Vec::new());
        let _ = self.volume.ext.commit(CommitReason::Sync);
        let _ = self.volume.ext.close();
        drop(self.dir);
        Volume::open(self.volume.mem)
    }
}

#[test]
fn a_name_is_not_added_where_the_index_cannot_be_read() {
    let deep = Deep::make();
    let Deep { volume, dir, .. } = &deep;
    deep.spoil(deep.node_of("one more"));
    {
        let mut room = volume.admit(0);
        let mut op = volume.ext.begin(OpKind::Create, &mut room).unwrap();
        let (ino, node) = op.inode_new(dir, &attr(FileKind::Regular), None).unwrap();
        let refused = op.name_add(dir, name("one more"), Target { ino, kind: FileKind::Regular, node: &node });
        assert_eq!(refused.unwrap_err().errno(), libc::EIO);
        op.end();
    }
    assert!(dir.inode().flags.contains(InodeFlags::INDEX), "what cannot be read is not damaged");
    assert!(volume.ext.health.failed().is_some(), "the volume takes no more changes");
    let volume = deep.reopen();
    let dir = volume.ext.lookup(&volume.root, name("dir")).unwrap().unwrap();
    let dir = volume.ext.load(dir.ino).unwrap().1;
    assert!(dir.inode().flags.contains(InodeFlags::INDEX));
    assert_eq!(names(&volume, &dir).len(), 602);
    drop(dir);
    volume.close();
}

#[test]
fn an_index_that_cannot_be_read_is_not_given_up_in_part() {
    let deep = Deep::make();
    let Deep { volume, dir, .. } = &deep;
    deep.spoil(deep.node_of("one more"));
    {
        let mut room = volume.admit(0);
        let op = volume.ext.begin(OpKind::Create, &mut room).unwrap();
        let mut index = dir.index.write();
        let refused = volume.ext.make_linear(dir, index.as_mut().expect("it was looked at"));
        assert_eq!(refused.unwrap_err().errno(), libc::EIO);
        op.end();
    }
    let volume = deep.reopen();
    let dir = volume.ext.lookup(&volume.root, name("dir")).unwrap().unwrap();
    let dir = volume.ext.load(dir.ino).unwrap().1;
    assert!(dir.inode().flags.contains(InodeFlags::INDEX));
    assert_eq!(names(&volume, &dir).len(), 602);
    drop(dir);
    volume.close();
}
