use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::probe::fault::{EVERYWHERE, Fault, Harm, Rule, Victims, When};
use moafs_runtime::Live;
use parking_lot::Mutex;

use super::fake::{Bench, Shape, leaving};
use crate::{PAGE_BYTES, PageNo, SwapError};

/// Makes a bench whose disk can inject faults.
fn hurtable(shape: &Shape) -> (Bench, Arc<Fault>) {
    let fault = Mutex::new(None);
    let bench = shape.bench_over(|disk| {
        let hurt = Arc::new(Fault::new(disk, Live::new(), Vec::new()));
        *fault.lock() = Some(hurt.clone());
        hurt as SharedDisk
    });
    let fault = fault.lock().take().expect("a disk was made");
    (bench, fault)
}

fn writes(when: When, harm: Harm) -> Vec<Rule> {
    vec![Rule::new(Victims::Writes(EVERYWHERE), when, harm)]
}

#[test]
fn a_page_that_cannot_be_written_stays_what_it_was() {
    let (bench, fault) = hurtable(&Shape::default());
    bench.access(2, 3);
    bench.out(0..2, 1);
    fault.set(writes(When::Always, Harm::Error));
    let error = bench.swap.page_out(&leaving(0..3, 2)).unwrap_err();
    assert!(matches!(error, SwapError::Device { page: PageNo(0), .. }), "{error}");
    fault.set(Vec::new());
    assert_eq!([0, 1, 2].map(|page| bench.generation(page)), [Some(1), Some(1), None]);
    assert_eq!(bench.swap.status().counters.write_errors, 3);
    bench.audit();
    bench.out(0..3, 3);
    assert_eq!([0, 1, 2].map(|page| bench.generation(page)), [Some(3); 3]);
    bench.audit();
}

#[test]
fn one_bad_sector_costs_one_page_and_is_not_tried_at_once_again() {
    let (bench, fault) = hurtable(&Shape::default());
    bench.access(2, 3);
    let area = bench.room.block(3, 0).0 - 8;
    // The third slot of the area that will be created.
    let bad = (area + 2) * 8..(area + 2) * 8 + 1;
    fault.set(vec![Rule::new(Victims::Requests(bad), When::Always, Harm::Error)]);
    let error = bench.swap.page_out(&leaving(0..6, 1)).unwrap_err();
    assert!(matches!(error, SwapError::Device { page: PageNo(2), .. }), "{error}");
    let there: Vec<_> = (0..6).map(|page| bench.generation(page).is_some()).collect();
    assert_eq!(there, [true, true, false, true, true, true]);
    bench.out(2..3, 1);
    assert_eq!(bench.generation(2), Some(1));
    bench.audit();
    let mut came = Vec::new();
    bench.swap.page_in_with(PageNo(3), 7, &mut |page, _| came.push(page.0)).unwrap();
    assert_eq!(came, [3, 4, 5], "the page before the bad slot did not come with the same request");
}

#[test]
fn a_slot_that_could_not_be_written_is_tried_again_before_a_page_goes_without() {
    let shape = Shape { pages: 16, area_pages: 2, ..Shape::default() };
    let (bench, fault) = hurtable(&shape);
    bench.access(2, 3);
    fault.set(writes(When::Nth(1), Harm::Error));
    bench.swap.page_out(&leaving(0..1, 1)).unwrap_err();
    fault.set(Vec::new());
    bench.out(0..16, 1);
    (0..16).for_each(|page| assert_eq!(bench.generation(page), Some(1)));
    bench.audit();
}

#[test]
fn an_area_with_bad_slots_is_given_back_whole() {
    let (bench, fault) = hurtable(&Shape::default());
    bench.access(2, 3);
    fault.set(writes(When::Always, Harm::Error));
    bench.swap.page_out(&leaving(0..3, 1)).unwrap_err();
    bench.swap.run_background_step().unwrap();
    bench.pass(30);
    bench.swap.run_background_step().unwrap();
    assert_eq!((bench.room.taken(), bench.swap.status().areas.len()), (0, 0));
    let room = bench.room.clone();
    bench.swap.page_out(&leaving(0..3, 1)).unwrap_err();
    drop(bench);
    assert_eq!((room.taken(), room.reserved()), (0, 0));
}

#[test]
fn bad_slots_of_the_fallback_are_given_back_at_the_end() {
    let (bench, fault) = hurtable(&Shape::default());
    bench.out(0..2, 1);
    fault.set(writes(When::Always, Harm::Error));
    bench.swap.page_out(&leaving(0..3, 2)).unwrap_err();
    assert_eq!(bench.swap.state.lock().traditional.spoiled, 3);
    bench.audit();
    let room = bench.room.clone();
    drop(bench);
    assert_eq!((room.taken(), room.reserved()), (0, 0));
}

#[test]
fn a_full_host_spoils_nothing() {
    let (bench, fault) = hurtable(&Shape::default());
    bench.access(2, 3);
    fault.set(writes(When::Nth(1), Harm::HostFull));
    let error = bench.swap.page_out(&leaving(0..1, 1)).unwrap_err();
    assert!(error.to_string().contains("no room on the host"), "{error}");
    bench.out(0..1, 1);
    bench.audit();
}

#[test]
fn a_neighbour_that_cannot_be_read_costs_nothing_but_a_request() {
    let (bench, fault) = hurtable(&Shape::default());
    bench.access(2, 3);
    bench.out(0..4, 1);
    let area = bench.room.block(3, 0).0 - 8;
    let bad = (area + 3) * 8..(area + 3) * 8 + 1;
    fault.set(vec![Rule::new(Victims::Reads(bad), When::Always, Harm::Error)]);
    let mut came = Vec::new();
    bench.swap.page_in_with(PageNo(1), 7, &mut |page, _| came.push(page.0)).unwrap();
    assert_eq!(came, [1]);
    let error = bench.swap.page_in(PageNo(3), &mut [0; PAGE_BYTES]).unwrap_err();
    assert!(matches!(error, SwapError::Device { page: PageNo(3), .. }), "{error}");
    fault.set(Vec::new());
    assert_eq!(bench.generation(3), Some(1));
    bench.audit();
}

#[test]
fn what_cannot_be_read_does_not_keep_others_from_leaving() {
    let (bench, fault) = hurtable(&Shape { pages: 200, ..Shape::default() });
    bench.access(2, 3);
    bench.out(0..8, 1);
    let area = bench.room.block(3, 0).0 - 8;
    let bad = (area + 3) * 8..(area + 3) * 8 + 1;
    fault.set(vec![Rule::new(Victims::Reads(bad), When::Always, Harm::Error)]);
    bench.room.press(2);
    for _ in 0..4 {
        let error = bench.swap.run_background_step().unwrap_err();
        assert!(matches!(error, SwapError::Device { page: PageNo(3), .. }), "{error}");
    }
    assert_eq!(bench.room.taken_in(2), 1);
    fault.set(Vec::new());
    assert!(!bench.swap.run_background_step().unwrap());
    assert_eq!(bench.room.taken_in(2), 0);
    (0..8).for_each(|page| assert_eq!(bench.generation(page), Some(1)));
    bench.audit();
}
