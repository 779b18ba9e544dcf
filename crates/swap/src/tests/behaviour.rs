use std::sync::Arc;

use moafs_disk::{MemDisk, SharedDisk};
use moafs_runtime::Live;

use super::fake::{Bench, Shape, generation_of, leaving};
use crate::{PAGE_BYTES, PageNo, Placement, Swap, SwapError, SwapOptions};

/// Runs background steps until there is nothing to do; fails if there are more steps than could be
/// needed.
fn settle(bench: &Bench) {
    assert!((0..1000).any(|_| !bench.swap.run_background_step().unwrap()));
}

#[test]
fn figure_2_pages_follow_the_files() {
    let bench = Shape { groups: 13, area_pages: 2, partition: true, ..Shape::default() }.bench();
    bench.out(1..3, 1);
    assert_eq!(bench.used(), (vec![], 2), "P1 and P2: no file was accessed yet");
    bench.access(10, 3);
    bench.out(3..4, 1);
    assert_eq!(bench.used(), (vec![(10, 1)], 2), "P3 after F1");
    bench.access(11, 4);
    bench.out(4..5, 1);
    assert_eq!(bench.used(), (vec![(10, 1), (11, 1)], 2), "P4 after F4");
    bench.access(11, 3);
    bench.out(5..6, 1);
    assert_eq!(bench.used(), (vec![(10, 1), (11, 2)], 2), "P5 after F3");
    (1..6).for_each(|page| assert_eq!(bench.generation(page), Some(1)));
    bench.audit();
}

#[test]
fn an_area_lies_at_the_end_of_its_group() {
    let bench = Shape::default().bench();
    bench.access(2, 5);
    bench.out(0..9, 1);
    let areas = bench.swap.status().areas;
    assert_eq!(
        areas.iter().map(|area| area.run.end()).collect::<Vec<_>>(),
        [bench.room.block(3, 0), bench.room.block(2, 56)]
    );
    assert_eq!(areas[0].run.len, 8);
}

#[test]
fn pages_that_leave_together_leave_in_one_request_and_come_back_in_one() {
    let bench = Shape::default().bench();
    bench.access(2, 5);
    bench.out(10..16, 1);
    assert_eq!(bench.requests(), 1);
    bench.out(30..31, 1);
    let mut came = Vec::new();
    let mut each = |page: PageNo, bytes: &[u8]| came.push((page.0, generation_of(page.0, bytes).unwrap()));
    bench.swap.page_in_with(PageNo(12), 7, &mut each).unwrap();
    assert_eq!(came, [12, 10, 11, 13, 14, 15].map(|page| (page, 1)), "not 30, which left later");
    assert_eq!(bench.requests(), 3);
    let mut came = Vec::new();
    bench.swap.page_in_with(PageNo(12), 2, &mut |page, _| came.push(page.0)).unwrap();
    assert_eq!(came, [12, 13, 14], "what follows comes first");
    bench.swap.free(PageNo(13), 1);
    let mut came = Vec::new();
    bench.swap.page_in_with(PageNo(12), 7, &mut |page, _| came.push(page.0)).unwrap();
    assert_eq!(came, [12, 10, 11], "13 is free, and 14 is not beside any more");
}

#[test]
fn a_page_that_was_out_moves_and_reads_as_last_written() {
    let bench = Shape::default().bench();
    bench.access(2, 5);
    bench.out(0..4, 1);
    bench.access(3, 5);
    bench.out(1..3, 2);
    assert_eq!(bench.used(), (vec![(2, 2), (3, 2)], 0));
    assert_eq!(
        (0..5).map(|page| bench.generation(page)).collect::<Vec<_>>(),
        [Some(1), Some(2), Some(2), Some(1), None]
    );
    bench.swap.free(PageNo(0), 3);
    assert_eq!(bench.generation(1), None);
    assert!(bench.swap.is_out(PageNo(3)) && !bench.swap.is_out(PageNo(0)));
    bench.audit();
}

#[test]
fn the_last_of_several_images_of_a_page_counts() {
    let bench = Shape::default().bench();
    bench.access(2, 5);
    let mut pages = leaving([5, 6], 1);
    pages.extend(leaving([5], 2));
    bench.swap.page_out(&pages).unwrap();
    assert_eq!((bench.generation(5), bench.generation(6), bench.used().0), (Some(2), Some(1), vec![(2, 2)]));
    bench.audit();
}

#[test]
fn every_page_finds_a_slot_wherever_the_head_is() {
    for block_bytes in [1024, 2048, 4096] {
        for pages in [1, 5, 8, 61, 64] {
            let granule = 4096 / block_bytes;
            let shape = Shape { block_bytes, group_blocks: 64 * granule, pages, ..Shape::default() };
            let bench = shape.bench();
            for generation in 1..4 {
                for page in 0..pages {
                    bench.access((page * generation) % 8, page % 50 + 3);
                    bench.out(page..page + 1, generation);
                }
                bench.audit();
                (0..pages).for_each(|page| assert_eq!(bench.generation(page), Some(generation)));
            }
            assert!(bench.swap.status().taken_blocks <= bench.room.reserved());
        }
    }
}

#[test]
fn all_pages_at_once_beyond_a_batch() {
    let shape = Shape { groups: 40, pages: 1500, area_pages: 100, ..Shape::default() };
    let bench = shape.bench();
    bench.access(20, 3);
    bench.out(0..1500, 1);
    (0..1500).for_each(|page| assert_eq!(bench.generation(page), Some(1)));
    bench.audit();
    bench.out(0..1500, 2);
    (0..1500).for_each(|page| assert_eq!(bench.generation(page), Some(2)));
    bench.audit();
}

#[test]
fn when_everything_is_full_a_page_is_written_over_its_slot() {
    let bench = Shape { pages: 16, area_pages: 2, ..Shape::default() }.bench();
    bench.access(1, 3);
    bench.out(0..16, 1);
    bench.out(3..7, 2);
    assert_eq!(bench.swap.status().counters.pages_out_in_place, 4);
    let now: Vec<_> = (2..8).map(|page| bench.generation(page).unwrap()).collect();
    assert_eq!(now, [1, 2, 2, 2, 2, 1]);
    bench.audit();
}

#[test]
fn the_fallback_of_a_volume_lies_at_its_lowest_free_addresses() {
    let bench = Shape { placement: Placement::Traditional, pages: 100, ..Shape::default() }.bench();
    bench.access(5, 3);
    bench.out(0..70, 1);
    assert_eq!((bench.room.taken_in(0), bench.room.taken_in(1), bench.room.taken_in(5)), (61, 39, 0));
    assert_eq!(bench.used(), (vec![], 70));
    (0..70).for_each(|page| assert_eq!(bench.generation(page), Some(1)));
    bench.swap.free(PageNo(0), 100);
    settle(&bench);
    bench.pass(30);
    settle(&bench);
    assert_eq!((bench.room.taken(), bench.room.reserved()), (0, 100));
}

#[test]
fn a_partition_alone_needs_no_volume() {
    let partition: SharedDisk = Arc::new(MemDisk::new(8 * 10));
    let swap = Swap::open(None, Some(partition.clone()), 10, Live::new(), SwapOptions::default()).unwrap();
    swap.page_out(&leaving(0..10, 1)).unwrap();
    swap.page_out(&leaving(0..10, 2)).unwrap();
    let mut bytes = vec![0; PAGE_BYTES];
    swap.page_in(PageNo(9), &mut bytes).unwrap();
    assert_eq!(generation_of(9, &bytes), Some(2));
    assert!(!swap.run_background_step().unwrap());
    let error = Swap::open(None, Some(partition), 11, Live::new(), SwapOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "the swap partition holds 10 pages, not 11");
    assert!(Swap::open(None, None, 11, Live::new(), SwapOptions::default()).is_err());
}

#[test]
fn with_a_partition_areas_get_what_the_volume_can_promise() {
    let shape = Shape { groups: 2, pages: 100, partition: true, ..Shape::default() };
    let bench = shape.bench();
    assert_eq!(bench.room.reserved(), 100);
    let tight = Shape { pages: 150, ..shape }.bench();
    assert_eq!(tight.room.reserved(), 75);
    tight.access(1, 3);
    tight.out(0..150, 1);
    (0..150).for_each(|page| assert_eq!(tight.generation(page), Some(1)));
    tight.audit();
}

#[test]
fn a_volume_that_cannot_promise_the_whole_swap_says_so() {
    let shape = Shape { pages: 8 * 61 + 1, ..Shape::default() };
    let room = shape.room();
    let error = shape.open(shape.home(&room, Arc::new(MemDisk::new(1 << 20))), None, Live::new()).unwrap_err();
    assert!(matches!(error, SwapError::Volume { .. }), "{error}");
    assert!(error.to_string().starts_with("reserving room for the swap: "), "{error}");
    let odd = Shape { block_bytes: 8192, ..shape };
    let error = odd.open(odd.home(&room, Arc::new(MemDisk::new(1 << 20))), None, Live::new()).unwrap_err();
    assert_eq!(error.to_string(), "blocks of 8192 bytes cannot hold pages of 4096");
    assert_eq!(room.reserved(), 0);
}

#[test]
fn free_space_in_pieces_smaller_than_a_page_is_told() {
    let bench = Shape { block_bytes: 1024, pages: 16, ..Shape::default() }.bench();
    bench.room.shred();
    bench.access(3, 3);
    let error = bench.swap.page_out(&leaving(0..1, 1)).unwrap_err();
    assert!(matches!(error, SwapError::NoRoom { page: PageNo(0) }), "{error}");
    bench.audit();
}

#[test]
fn pages_beyond_the_swap_are_refused_and_free_ignores_them() {
    let bench = Shape::default().bench();
    let beyond = bench.swap.page_out(&leaving([63, 64], 1)).unwrap_err();
    assert_eq!(beyond.to_string(), "page 64 of a swap of 64 pages");
    assert!(!bench.swap.is_out(PageNo(63)), "nothing was written");
    assert!(bench.swap.page_in(PageNo(u32::MAX), &mut [0; PAGE_BYTES]).is_err());
    assert!(bench.swap.page_in_with(PageNo(64), 3, &mut |_, _| panic!("no page")).is_err());
    bench.swap.free(PageNo(60), u32::MAX);
    bench.swap.free(PageNo(u32::MAX), u32::MAX);
    assert!(!bench.swap.is_out(PageNo(u32::MAX)));
}

#[test]
fn dropping_gives_everything_back() {
    let shape = Shape { pages: 200, ..Shape::default() };
    let bench = shape.bench();
    bench.out(0..30, 1);
    bench.access(3, 3);
    bench.out(30..90, 1);
    assert!(bench.room.taken() >= 90);
    let room = bench.room.clone();
    drop(bench);
    assert_eq!((room.taken(), room.reserved()), (0, 0));
}

#[test]
fn areas_leave_a_group_that_writers_need() {
    let bench = Shape { pages: 200, ..Shape::default() }.bench();
    bench.access(2, 3);
    bench.out(0..40, 1);
    assert_eq!(bench.room.taken_in(2), 40);
    assert_eq!(bench.room.write_files(2, 61), 21);
    settle(&bench);
    assert_eq!(bench.room.taken_in(2), 0);
    assert_eq!(bench.room.write_files(2, 40), 40);
    (0..40).for_each(|page| assert_eq!(bench.generation(page), Some(1)));
    bench.audit();
    bench.access(2, 4);
    bench.out(40..41, 1);
    assert_eq!(bench.room.taken_in(2), 0, "what was given up is not taken at once again");
    let counters = bench.swap.status().counters;
    assert_eq!((counters.groups_left, counters.pages_migrated), (1, 40));
}

#[test]
fn areas_leave_also_when_the_swap_is_full() {
    let bench = Shape { pages: 64, ..Shape::default() }.bench();
    bench.access(2, 3);
    bench.out(0..64, 1);
    assert_eq!(bench.swap.status().used, 64);
    let before = bench.room.taken_in(2);
    bench.room.press(2);
    settle(&bench);
    // With every reserved block in use no page can move; a slot that one page frees lets others
    // follow.
    assert_eq!(bench.room.taken_in(2), before);
    bench.swap.free(PageNo(63), 1);
    settle(&bench);
    assert_eq!(bench.room.taken_in(2), 0);
    (0..63).for_each(|page| assert_eq!(bench.generation(page), Some(1)));
    bench.audit();
}

#[test]
fn empty_areas_are_given_back_when_the_reserve_is_needed_elsewhere() {
    let bench = Shape { pages: 64, ..Shape::default() }.bench();
    for group in 0..7 {
        bench.access(group, 3);
        bench.out(group * 8..group * 8 + 8, 1);
    }
    bench.swap.free(PageNo(16), 8);
    bench.access(7, 3);
    bench.out(60..64, 1);
    bench.out(16..24, 1);
    let groups: Vec<u32> = bench.used().0.iter().map(|(group, _)| *group).collect();
    assert_eq!(groups, [0, 1, 3, 4, 5, 6, 7, 7], "the area of group 2 went to group 7");
    bench.audit();
}

#[test]
fn areas_that_nobody_uses_for_a_while_are_given_back() {
    let bench = Shape::default().bench();
    bench.access(2, 3);
    bench.out(0..8, 1);
    bench.swap.free(PageNo(0), 8);
    bench.swap.run_background_step().unwrap();
    bench.pass(29);
    bench.swap.run_background_step().unwrap();
    assert_eq!(bench.room.taken(), 8);
    bench.pass(1);
    bench.swap.run_background_step().unwrap();
    assert_eq!((bench.room.taken(), bench.swap.status().areas.len()), (0, 0));
    assert_eq!(bench.swap.status().counters.areas_given_back, 1);
}

#[test]
fn a_swap_tells_about_itself() {
    let bench = Shape::default().bench();
    bench.out(0..1, 1);
    bench.access(2, 3);
    bench.out(1..4, 1);
    bench.generation(2);
    let status = bench.swap.status();
    assert_eq!((status.pages, status.used, status.area_slots, status.traditional_used), (64, 4, 8, 1));
    let json = status.json();
    let start =
        "{\"placement\":\"saf\",\"pages\":64,\"used\":4,\"reserved_blocks\":64,\"taken_blocks\":9,\"area_slots\":8,";
    assert!(json.starts_with(start), "{json}");
    for part in [
        "\"areas\":[{\"group\":2,\"start\":184,\"blocks\":8,\"slots\":8,\"used\":3,\"leaving\":false}]",
        "\"pages_out\":4,",
        "\"pages_in\":1,",
    ] {
        assert!(json.contains(part), "{part} in {json}");
    }
    assert!(status.counters.named().contains(&("out_requests", 2)));
}
