//! Directories with an index, as their blocks are.

use super::*;

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
