//! Pass 0: group descriptors, their copies, and groups whose bitmaps and tables were never written.

use std::collections::BTreeSet;

use moafs_disk::{Disk, Page};

use super::checker::Checker;
use super::error::CheckError;
use super::issue::Issue;
use super::report::Log;
use super::scan::{Blocks, slots};
use super::volume::Volume;
use crate::format::group::{BLOCK_UNINIT, INODE_UNINIT};
use crate::format::{Descriptor, Geometry, GroupNo, Inode, InodeNo, Sealed, Structure, bitmap};

/// Reads the descriptor table; replaces a damaged one by its copy. Returns `None` if the check ends
/// here.
pub(super) fn read_descriptors(
    volume: &Volume<'_>,
    geo: &Geometry,
    log: &mut Log,
) -> Result<Option<Vec<Descriptor>>, CheckError> {
    let mut descriptors = Vec::with_capacity(geo.groups as usize);
    let mut usable = true;
    for group in geo.all_groups() {
        let (block, offset) = geo.locate_descriptor(group);
        let page = volume.read(block)?;
        let slot = &page[offset..offset + geo.desc_size as usize];
        let mut descriptor = Descriptor::parse(slot, geo);
        let mut fix = false;
        if let Err(damage) = descriptor.check(group, geo) {
            let copy = Descriptor::of_copy(group, geo, |block| volume.read(block))?;
            let problem = damage.problem;
            fix |= log.found(Issue::DescriptorDamaged { group, problem, copy: copy.map(|(at, _)| at) });
            match copy {
                // Copies are as old as the volume: what was never used is believed to the damaged one.
                Some((_, good)) => {
                    let Descriptor { flags, itable_unused, .. } = descriptor;
                    descriptor = Descriptor { flags, itable_unused, ..good };
                    if geo.checksums.cover_all() {
                        // The checksums tell the slots that were written from the others.
                        let (flags, itable_unused) = (flags | good.flags & INODE_UNINIT, geo.inodes_per_group);
                        let before = Descriptor { flags, itable_unused, ..good };
                        descriptor = match fix {
                            true => uncover(volume, geo, group, before)?,
                            false => uncovered(volume, geo, group, before)?,
                        };
                    }
                }
                None => usable = false,
            }
        } else if let Err(problem) = geo.checksums.verify(Sealed::Descriptor(group), slot) {
            fix |= log.found(Issue::Checksum { structure: Structure::Descriptor(group), problem });
        }
        if let Some((flags, itable_unused)) = wrong_flags(&descriptor, group, geo)
            && log.found(Issue::DescriptorFlags { group, flags, itable_unused })
        {
            descriptor.flags &= !flags;
            descriptor.itable_unused = 0;
            fix = true;
        }
        if fix {
            store(volume, geo, group, &descriptor)?;
        }
        descriptors.push(descriptor);
    }
    // Only the positions of usable descriptors are known to lie on the volume.
    usable = usable && part(volume, geo, log, &mut descriptors)?;
    Ok(usable.then_some(descriptors))
}

/// Replaces descriptors by their copies that place a group's metadata on those of another group. Returns false if the
/// copies place them so as well.
fn part(
    volume: &Volume<'_>,
    geo: &Geometry,
    log: &mut Log,
    descriptors: &mut [Descriptor],
) -> Result<bool, CheckError> {
    let places = |of: &Descriptor| (of.block_bitmap, of.inode_bitmap, of.inode_table);
    let (overlapping, mut replaced) = (overlapping(descriptors, geo), false);
    for group in &overlapping {
        let descriptor = &mut descriptors[group.0 as usize];
        let copy = Descriptor::of_copy(*group, geo, |block| volume.read(block))?
            .filter(|(_, copy)| places(copy) != places(descriptor));
        let Some((at, copy)) = copy else { continue };
        let problem = "its bitmaps or its inode table lie on the metadata of another group".to_owned();
        let Descriptor { flags, itable_unused, .. } = *descriptor;
        *descriptor = Descriptor { flags, itable_unused, ..copy };
        replaced = true;
        if log.found(Issue::DescriptorDamaged { group: *group, problem, copy: Some(at) }) {
            store(volume, geo, *group, descriptor)?;
        }
    }
    if let Some(group) = overlapping.first().filter(|_| !replaced) {
        let problem = "its metadata and those of another group overlap".to_owned();
        log.found(Issue::DescriptorDamaged { group: *group, problem, copy: None });
    }
    Ok(overlapping.is_empty() || replaced)
}

/// Returns the groups whose metadata lie on those of another group.
fn overlapping(descriptors: &[Descriptor], geo: &Geometry) -> BTreeSet<GroupNo> {
    let mut parts = Vec::new();
    for (group, descriptor) in geo.all_groups().zip(descriptors) {
        let head = (geo.group_start(group).0, geo.head_blocks(group).into());
        let table = (descriptor.inode_table.0, geo.inode_table_blocks.into());
        let bitmaps = [(descriptor.block_bitmap.0, 1), (descriptor.inode_bitmap.0, 1)];
        parts.extend(
            [head, table].into_iter().chain(bitmaps).map(|(start, len): (u64, u64)| (start, start + len, group)),
        );
    }
    parts.sort_unstable();
    let mut found = BTreeSet::new();
    let mut reach = (0, GroupNo(0));
    for (start, end, group) in parts.into_iter().filter(|(start, end, _)| start < end) {
        if start < reach.0 && group != reach.1 {
            found.extend([group, reach.1]);
        }
        if end > reach.0 {
            reach = (end, group);
        }
    }
    found
}

/// Returns flags of unused parts, and the count of unused inodes, that cannot be: on volumes without checksums of
/// descriptors, and for groups with reserved inodes.
fn wrong_flags(descriptor: &Descriptor, group: GroupNo, geo: &Geometry) -> Option<(u16, u32)> {
    let Descriptor { itable_unused, .. } = *descriptor;
    let flags = descriptor.flags & (INODE_UNINIT | BLOCK_UNINIT);
    if !geo.checksums.allow_lazy_groups() {
        return (flags != 0 || itable_unused != 0).then_some((flags, itable_unused));
    }
    let reserved = geo.reserved_inodes(group);
    let hides_reserved = reserved > 0 && reserved > descriptor.inodes_ever_used(geo);
    (hides_reserved || itable_unused > geo.inodes_per_group).then_some((flags & INODE_UNINIT, itable_unused))
}

fn store(volume: &Volume<'_>, geo: &Geometry, group: GroupNo, descriptor: &Descriptor) -> Result<(), CheckError> {
    let (block, offset) = geo.locate_descriptor(group);
    volume.change(block, |bytes| {
        let slot = &mut bytes[offset..offset + geo.desc_size as usize];
        descriptor.encode_into(slot, geo);
        let sealed = geo.checksums.seal(Sealed::Descriptor(group), slot);
        debug_assert!(sealed.is_ok(), "every descriptor has a place for its checksum");
    })
}

/// Slots of a group's inode table, some of which may never have been written.
struct Slots<'a> {
    geo: &'a Geometry,
    /// The inode bitmap, if there is one.
    marks: Option<Page>,
}

impl<'a> Slots<'a> {
    fn of(volume: &Volume<'_>, geo: &'a Geometry, descriptor: &Descriptor) -> Result<Slots<'a>, CheckError> {
        let has_marks = !descriptor.lacks_inode_bitmap(geo);
        let marks = has_marks.then(|| volume.read(descriptor.inode_bitmap)).transpose()?;
        Ok(Slots { geo, marks })
    }

    /// Returns true if the slot belongs to this volume. One that was never written may hold an inode of an older one,
    /// with another checksum.
    fn is_written(&self, ino: InodeNo, slot: &[u8]) -> bool {
        let index = self.geo.locate_inode(ino).expect("an inode of the volume").index;
        let is_marked = self.marks.as_ref().is_some_and(|marks| bitmap::test(marks, index));
        is_marked || self.geo.checksums.verify(Sealed::Inode(ino), slot).is_ok()
    }
}

/// Returns the descriptor of a group that hides none of its inodes in use: it ends at the last of them.
fn uncovered(
    volume: &Volume<'_>,
    geo: &Geometry,
    group: GroupNo,
    descriptor: Descriptor,
) -> Result<Descriptor, CheckError> {
    let table = Slots::of(volume, geo, &descriptor)?;
    let whole = Descriptor { flags: descriptor.flags & !INODE_UNINIT, itable_unused: 0, ..descriptor };
    let mut end = descriptor.inodes_ever_used(geo).max(geo.reserved_inodes(group));
    let mut index = 0;
    slots(volume, geo, group, &whole, |ino, slot| {
        index += 1;
        let inode = Inode::parse(slot, geo);
        if index > end && inode.links > 0 && inode.kind().is_some() && table.is_written(ino, slot) {
            end = index;
        }
        Ok(())
    })?;
    Ok(match end {
        0 => descriptor,
        _ => Descriptor { itable_unused: geo.inodes_per_group - end, ..whole },
    })
}

/// Uncovers the inodes in use of a group. The slots between them that were never written become free ones.
fn uncover(volume: &Volume<'_>, geo: &Geometry, group: GroupNo, before: Descriptor) -> Result<Descriptor, CheckError> {
    let after = uncovered(volume, geo, group, before)?;
    let table = Slots::of(volume, geo, &before)?;
    for index in before.inodes_ever_used(geo)..after.inodes_ever_used(geo) {
        let ino = geo.inode_at(group, index);
        let mut slot = volume.slot(after.inode_table, ino)?;
        if !table.is_written(ino, &slot) {
            slot.fill(0);
            volume.set_slot(after.inode_table, ino, &slot)?;
        }
    }
    store(volume, geo, group, &after)?;
    Ok(after)
}

/// Groups with inodes in use that their descriptors hide, as a check that changed nothing has found them.
pub(super) struct Hidden {
    geo: Geometry,
    /// Their descriptors, and an inode of each that was hidden.
    groups: Vec<(GroupNo, Descriptor, Issue)>,
}

impl Hidden {
    /// Writes new descriptors, which hide no inode in use. Returns what was repaired.
    pub(super) fn uncover(self, disk: &dyn Disk) -> Result<Log, CheckError> {
        let (volume, mut log) = (Volume::new(disk, self.geo.clone()), Log::default());
        for (group, descriptor, issue) in self.groups {
            log.note(issue, true);
            uncover(&volume, &self.geo, group, descriptor)?;
        }
        volume.finish(None)?;
        Ok(log)
    }
}

impl Checker<'_> {
    pub(super) fn set_descriptor(&mut self, group: GroupNo, descriptor: Descriptor) -> Result<(), CheckError> {
        self.descriptors[group.0 as usize] = descriptor;
        store(&self.volume, &self.geo, group, &descriptor)
    }

    /// Returns true if a name leads to an inode in use whose slot its group says was never used: no pass has looked at
    /// the slot.
    pub(super) fn is_hidden(&self, ino: InodeNo) -> Result<bool, CheckError> {
        let Some(at) = self.geo.locate_inode(ino) else { return Ok(false) };
        let is_covered = at.index >= self.descriptors[at.group.0 as usize].inodes_ever_used(&self.geo);
        if !is_covered && !self.uncovered.contains(&at.group) {
            return Ok(false);
        }
        let slot = self.volume.slot(self.table_of(ino), ino)?;
        let inode = Inode::parse(&slot, &self.geo);
        // A slot that was never written may hold anything.
        let is_sealed = self.geo.checksums.verify(Sealed::Inode(ino), &slot).is_ok();
        Ok(is_sealed && inode.links > 0 && inode.kind().is_some())
    }

    /// Looks for inodes in use that their groups hide, without a name that leads to them.
    pub(super) fn find_hidden(&mut self) -> Result<(), CheckError> {
        for group in self.geo.all_groups() {
            let Some(inode) = self.first_hidden(group)? else { continue };
            let issue = Issue::HiddenUnnamed { group, inode };
            if self.log.found(issue.clone()) {
                self.uncover(group)?;
            } else {
                self.hidden.entry(group).or_insert(issue);
            }
        }
        Ok(())
    }

    /// Returns the first inode that a group hides. Without checksums of inodes the bitmap must say that it is in use: a
    /// slot that was never written may hold one of an older volume.
    fn first_hidden(&self, group: GroupNo) -> Result<Option<InodeNo>, CheckError> {
        let descriptor = self.descriptors[group.0 as usize];
        let covered = descriptor.inodes_ever_used(&self.geo)..self.geo.inodes_per_group;
        let marked = match self.geo.checksums.cover_all() {
            true => None,
            false if descriptor.lacks_inode_bitmap(&self.geo) => return Ok(None),
            false => Some(self.volume.read(descriptor.inode_bitmap)?),
        };
        for index in covered.filter(|index| marked.as_ref().is_none_or(|map| bitmap::test(map, *index))) {
            let ino = self.geo.inode_at(group, index);
            if self.is_hidden(ino)? {
                return Ok(Some(ino));
            }
        }
        Ok(None)
    }

    /// Has the next sweep look at all inodes in use of a group.
    pub(super) fn uncover(&mut self, group: GroupNo) -> Result<(), CheckError> {
        self.uncovered.insert(group);
        let descriptor = uncover(&self.volume, &self.geo, group, self.descriptors[group.0 as usize])?;
        self.descriptors[group.0 as usize] = descriptor;
        Ok(())
    }

    /// Takes the groups with inodes that this sweep has not looked at; `None` if there are none.
    pub(super) fn take_hidden(&mut self) -> Option<Box<Hidden>> {
        let groups = std::mem::take(&mut self.hidden);
        let part = |(group, issue): (GroupNo, Issue)| (group, self.descriptors[group.0 as usize], issue);
        let groups: Vec<_> = groups.into_iter().map(part).collect();
        (!groups.is_empty()).then(|| Box::new(Hidden { geo: self.geo.clone(), groups }))
    }

    /// Takes a free inode that is not reserved; the first that was never used if all others are in use. Only correct
    /// after pass 1.
    pub(super) fn take_inode(&mut self) -> Result<Option<InodeNo>, CheckError> {
        let is_free = |ino: &InodeNo| {
            let at = self.geo.locate_inode(*ino).expect("an inode of the volume");
            let used = self.descriptors[at.group.0 as usize].inodes_ever_used(&self.geo);
            self.state(*ino).type_byte == 0 && at.index <= used
        };
        let found = (self.geo.first_ino..=self.geo.inodes).map(InodeNo).find(is_free);
        if let Some(at) = found.and_then(|ino| self.geo.locate_inode(ino)) {
            let mut descriptor = self.descriptors[at.group.0 as usize];
            if at.index >= descriptor.inodes_ever_used(&self.geo) {
                descriptor.flags &= !INODE_UNINIT;
                descriptor.itable_unused = self.geo.inodes_per_group - at.index - 1;
                self.set_descriptor(at.group, descriptor)?;
            }
        }
        Ok(found)
    }
}
