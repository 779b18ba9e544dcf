//! Contents inside an inode (inline_data): the first 60 bytes take the place of the pointers, the rest is the value of
//! the attribute `system.data`, which programs do not see.
//!
//! A directory has its parent's number in the first four bytes, then two runs of entries that each tile their place: 56
//! bytes behind the number, and the attribute's value. There are no entries for `.` and `..`. [`directory`] makes one
//! ordinary block of all this, which the code for directory blocks reads.

use moafs_vfs::types::FileKind;

use super::dir::{self, Form};
use super::inode::entry_type;
use super::xattr::{self, Area, INLINE_DATA};
use super::{BlockNo, Damage, Geometry, Inode, InodeNo, Place, Structure, u32_at};

/// Bytes of a directory's first part that hold its parent's number.
const PARENT_BYTES: usize = 4;

/// Returns the contents of an inode that has them inside, in file order, as long as the file is.
///
/// # Errors
/// If the attribute with the rest is damaged, or the contents are shorter than the file.
pub fn contents(inode: &Inode, ino: InodeNo, slot: &[u8], block: BlockNo) -> Result<Vec<u8>, Damage> {
    let (first, rest) = parts(inode, ino, slot, block)?;
    let mut all = [&first[..], &rest].concat();
    if (all.len() as u64) < inode.size {
        let problem = format!("the file's size is {}, but there are {} bytes", inode.size, all.len());
        return Err(place(ino, block).damage(problem));
    }
    all.truncate(inode.size as usize);
    Ok(all)
}

fn place(ino: InodeNo, block: BlockNo) -> Place {
    Place::new(Structure::InlineData(ino), block)
}

fn parts(inode: &Inode, ino: InodeNo, slot: &[u8], block: BlockNo) -> Result<([u8; 60], Vec<u8>), Damage> {
    let area = Area::Inode(xattr::inode_area(slot, inode.extra_isize));
    let entries = xattr::entries_with_inodes(area, Place::new(Structure::InodeXattrs(ino), block))?;
    let rest = entries.iter().find(|entry| (entry.index, entry.name) == INLINE_DATA);
    Ok((inode.block_bytes(), rest.map_or(Vec::new(), |entry| entry.value.to_vec())))
}

/// Returns a directory inside its inode as one block: `.`, `..`, then the entries of both runs in their order. The
/// block is as long as it has to be.
///
/// # Errors
/// If the attribute with the rest is damaged, or a run is not tiled by entries with legal contents.
pub fn directory(inode: &Inode, ino: InodeNo, slot: &[u8], block: BlockNo, geo: &Geometry) -> Result<Vec<u8>, Damage> {
    let (first, rest) = parts(inode, ino, slot, block)?;
    // The inode's own checksum covers the runs: they have no tail.
    let (form, place) = (Form { has_tail: false, ..Form::of(geo) }, place(ino, block));
    let mut image = Vec::new();
    let directory = entry_type_of_directories(form);
    dir::append(&mut image, ino, directory, b".");
    dir::append(&mut image, InodeNo(u32_at(&first, 0)), directory, b"..");
    for run in [&first[PARENT_BYTES..], &rest] {
        for entry in dir::Entries::check(run, form, place)?.used() {
            dir::append(&mut image, entry.inode, entry.type_byte, entry.name);
        }
    }
    Ok(image)
}

fn entry_type_of_directories(form: Form) -> u8 {
    if form.filetype { entry_type(FileKind::Directory) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::superblock::tests::sample;
    use super::super::{put_u16, put_u32};
    use super::*;

    const INO: InodeNo = InodeNo(12);

    /// Returns an inode of 256 bytes with 32 extra ones, and its slot with `rest` as the value of the attribute.
    fn inode(first: [u8; 60], rest: &[u8], size: u64) -> (Inode, Vec<u8>) {
        let mut inode = Inode { extra_isize: 32, size, ..Inode::default() };
        inode.block = std::array::from_fn(|i| u32_at(&first, 4 * i));
        let mut slot = vec![0; 256];
        put_u16(&mut slot, 0x80, 32);
        let attribute = xattr::Attribute { index: 7, name: (*b"data").into(), value: rest.to_vec() };
        let area = xattr::build_inode_area(&[&attribute], 96).unwrap();
        slot[160..].copy_from_slice(&area);
        (inode, slot)
    }

    #[test]
    fn a_file_continues_in_the_attribute() {
        let first: [u8; 60] = std::array::from_fn(|i| i as u8);
        let (whole, slot) = inode(first, &[7; 10], 70);
        let all = contents(&whole, INO, &slot, BlockNo(5)).unwrap();
        assert_eq!(all, [&first[..], &[7; 10]].concat());
        let (short, slot) = inode(first, &[], 3);
        assert_eq!(contents(&short, INO, &slot, BlockNo(5)).unwrap(), [0, 1, 2]);
        let (long, slot) = inode(first, &[], 61);
        assert!(contents(&long, INO, &slot, BlockNo(5)).unwrap_err().problem.contains("61"));
    }

    #[test]
    fn a_directory_has_two_runs_of_entries() {
        let geo = Geometry::of(&sample(), u64::MAX).unwrap();
        let form = Form::of(&geo);
        let mut first = [0; 60];
        put_u32(&mut first, 0, 2);
        let mut run = Vec::new();
        dir::append(&mut run, InodeNo(20), 1, b"one");
        put_u16(&mut run, 4, 56);
        first[4..4 + run.len()].copy_from_slice(&run);
        let mut rest = Vec::new();
        dir::append(&mut rest, InodeNo(21), 2, b"two");
        let (directory_inode, slot) = inode(first, &rest, 60 + rest.len() as u64);
        let image = directory(&directory_inode, INO, &slot, BlockNo(5), &geo).unwrap();
        let names: Vec<_> = dir::Entries::check(&image, form, place(INO, BlockNo(5)))
            .unwrap()
            .used()
            .map(|e| (e.inode.0, e.name.to_vec()))
            .collect();
        let expected: [(u32, &[u8]); 4] = [(12, b"."), (2, b".."), (20, b"one"), (21, b"two")];
        assert_eq!(names, expected.map(|(ino, name)| (ino, name.to_vec())));
        put_u16(&mut first, 8, 52);
        let (damaged, slot) = inode(first, &rest, 60);
        assert!(directory(&damaged, INO, &slot, BlockNo(5), &geo).is_err());
    }
}
