//! Serving a request allocates nothing: a daemon that must serve page-out cannot wait for memory.

#![cfg(target_endian = "little")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use moafs_fuse::{
    AttrReply, DirPlusBuf, Dispatcher, Entry, FOREVER, FileAttr, FileHandle, FileSystem, NodeId, ReqCtx, Result,
    WriteFlags,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: hands everything to the system's allocator; the counter is a plain cell and allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

struct Still;

fn attr() -> AttrReply {
    AttrReply { attr: FileAttr { ino: 2, mode: libc::S_IFREG, ..FileAttr::default() }, attr_ttl: FOREVER }
}

fn entry() -> Entry {
    Entry { node: NodeId(2), generation: 0, attr: attr().attr, entry_ttl: FOREVER, attr_ttl: FOREVER }
}

impl FileSystem for Still {
    fn lookup(&self, _: &ReqCtx, _: &[u8]) -> Result<Entry> {
        Ok(entry())
    }
    fn getattr(&self, _: &ReqCtx, _: Option<FileHandle>) -> Result<AttrReply> {
        Ok(attr())
    }
    fn read(&self, _: &ReqCtx, _: FileHandle, _: u64, out: &mut [u8]) -> Result<usize> {
        Ok(out.len())
    }
    fn write(&self, _: &ReqCtx, _: FileHandle, _: u64, data: &[u8], _: WriteFlags) -> Result<usize> {
        Ok(data.len())
    }
    fn readdirplus(&self, _: &ReqCtx, _: FileHandle, _: u64, out: &mut DirPlusBuf<'_>) -> Result<()> {
        while out.add(&entry(), 1, b"name") {}
        Ok(())
    }
    fn getxattr(&self, _: &ReqCtx, _: &[u8], out: &mut [u8]) -> Result<usize> {
        Ok(out.len())
    }
}

/// Encodes a request as in the protocol: 40 bytes of head, the argument, the payload.
fn request(opcode: u32, arg: &[u64], payload: &[u8]) -> Vec<u8> {
    let len = 40 + arg.len() * 8 + payload.len();
    let head = [len as u64 | u64::from(opcode) << 32, 7, 1, 0, 0];
    let mut bytes = Vec::new();
    for word in head.iter().chain(arg) {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn serving_a_request_allocates_nothing() {
    const SIZE: u64 = 65_536;
    let requests = [
        request(1, &[], b"name\0"),
        request(3, &[0, 0], b""),
        request(15, &[0, 0, SIZE, 0, 0], b""),
        request(16, &[0, 0, SIZE, 0, 0], &[1; SIZE as usize]),
        request(44, &[0, 0, SIZE, 0, 0], b""),
        request(22, &[100], b"user.name\0"),
        request(9999, &[], b""),
        request(2, &[1], b""),
    ];
    let dispatcher = Dispatcher::new(Arc::new(Still), moafs_fuse::InitFlags::empty());
    let mut reply = Vec::with_capacity(1 << 20);
    let before = ALLOCATIONS.get();
    for _ in 0..10 {
        for request in &requests {
            assert!(dispatcher.answer(request, &mut reply, SIZE as usize));
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    let expected = [144, 120, 16 + SIZE, 24, 65_456, 116, 16, 0];
    for (request, expected) in requests.iter().zip(expected) {
        assert!(dispatcher.answer(request, &mut reply, SIZE as usize));
        assert_eq!(reply.len() as u64, expected);
    }
}
