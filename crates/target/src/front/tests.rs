//! What all lanes share of a volume.

use std::{sync::mpsc, thread, time::Duration};

use super::*;

#[test]
fn an_older_state_is_never_kept_over_a_newer_one() {
    const FIRST: &str = "registration 0000000000000001 1 0 iqn.2026-11.test:a,i,0x000000000001\n";
    const SECOND: &str = "registration 0000000000000002 1 0 iqn.2026-11.test:b,i,0x000000000001\n";
    let home = Arc::new(Home::default());
    let file = Arc::new(Mutex::new(None));
    // The first write takes its time: until the second has ended, or as long as that waits for it.
    let (writes, writing) = mpsc::channel();
    let (ended, second_ended) = mpsc::channel();
    let slow: Keep = {
        let (file, second_ended) = (file.clone(), Mutex::new(second_ended));
        Arc::new(move |_, text| {
            writes.send(()).expect("the test waits");
            let patience = Duration::from_millis(500);
            let _ = second_ended.lock().expect("one").recv_timeout(patience);
            *file.lock().expect("no panic") = text;
            Ok(())
        })
    };
    let quick: Keep = {
        let file = file.clone();
        Arc::new(move |_, text| {
            *file.lock().expect("no panic") = text;
            Ok(())
        })
    };
    home.unit.restore(FIRST);
    let lane = {
        let home = home.clone();
        thread::spawn(move || home.keep("disk", &slow))
    };
    writing.recv().expect("it writes");
    home.unit.restore(SECOND);
    home.keep("disk", &quick).expect("it is kept");
    let _ = ended.send(());
    lane.join().expect("no panic").expect("it is kept");
    let kept = file.lock().expect("no panic").clone();
    assert_eq!(kept, Some(format!("{FIRST}{SECOND}")));
}
