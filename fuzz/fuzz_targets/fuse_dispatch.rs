//! Requests that no kernel would send, one after another, to a file system in memory. Nothing may hang or panic (which
//! libFuzzer reports even though the dispatcher catches it), and every reply must be well-formed.
//!
//! The input is a sequence of requests, each after its length in two bytes; the length in a request's head is made
//! true, so that the fuzzer need not guess it.

#![no_main]

#[path = "../../crates/fuse/examples/nullfs/memfs.rs"]
mod memfs;

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use memfs::MemFs;
use moafs_fuse::Dispatcher;

const REPLY_LEN_MAX: usize = 64 << 10;
const REQUESTS_MAX: usize = 64;
const OUT_HEADER_LEN: usize = 16;

fuzz_target!(|input: &[u8]| {
    let dispatcher = Dispatcher::new(Arc::new(MemFs::default()));
    let mut reply = Vec::new();
    let mut rest = input;
    for _ in 0..REQUESTS_MAX {
        let Some((len, tail)) = rest.split_first_chunk::<2>() else { return };
        let (request, tail) = tail.split_at(usize::from(u16::from_le_bytes(*len)).min(tail.len()));
        rest = tail;
        let mut request = request.to_vec();
        let true_len = (request.len() as u32).to_ne_bytes();
        if let Some(head) = request.first_chunk_mut() {
            *head = true_len;
        }
        if dispatcher.answer(&request, &mut reply, REPLY_LEN_MAX) {
            check(&request, &reply);
        }
    }
});

fn check(request: &[u8], reply: &[u8]) {
    if reply.is_empty() {
        return;
    }
    let word = |at: usize| reply[at..].first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)).expect("a head");
    assert_eq!(word(0) as usize, reply.len(), "the length is true");
    assert!(word(4) as i32 <= 0 && word(4) as i32 > -512, "an error number the kernel accepts");
    assert!(word(4) == 0 || reply.len() == OUT_HEADER_LEN, "an error carries no data");
    assert_eq!(reply[8..16], request[8..16], "the reply names its request");
}
