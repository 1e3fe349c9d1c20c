use proptest::prelude::*;

use super::*;

const SESSION: SessionMark = SessionMark { process: 1, epoch: 2 };

fn step(at_s: f64) -> TimedStep {
    let timings = StepTimings {
        wait_s: 0.5,
        load_s: 0.25,
        compute_s: 1.5,
        encode_s: 0.125,
        send_s: 0.0625,
        cpu_s: 2.0,
        throttled_s: 0.75,
        quota_cores: Some(0.5),
        warm_up: true,
    };
    let step = TimedStep { at_s, job: 3, assignment: 4, round: 5, version: 6, samples: 7, ..TimedStep::default() };
    step.with_timings(&timings)
}

fn batch(steps: Vec<TimedStep>) -> TimingsBatch {
    TimingsBatch { agent: "pi-4".into(), session: SESSION, first: steps[0].seq, lost: 9, steps }
}

#[test]
fn a_batch_is_the_json_that_is_documented() {
    let batch = batch(vec![TimedStep { seq: 8, quota_cores: None, ..step(10.5) }]);
    let expected = concat!(
        r#"{"agent":"pi-4","session":{"process":"0000000000000001","epoch":2},"first":8,"lost":9,"steps":["#,
        r#"{"seq":8,"at_s":10.5,"job":3,"assignment":4,"round":5,"version":6,"samples":7,"wait_s":0.5,"load_s":0.25,"#,
        r#""compute_s":1.5,"encode_s":0.125,"send_s":0.0625,"cpu_s":2.0,"throttled_s":0.75,"quota_cores":null,"warm_up":true}]}"#,
    );
    assert_eq!(String::from_utf8(batch.encode(TimingsFormat::Json)).unwrap(), expected);
    assert_eq!(TimingsBatch::decode("pi-4", expected.as_bytes()).unwrap(), batch);
}

#[test]
fn postcard_is_a_fourth_of_json_and_the_same() {
    let batch = batch((0..100).map(|seq| TimedStep { seq, ..step(seq as f64 / 3.0) }).collect());
    let (json, postcard) = (batch.encode(TimingsFormat::Json), batch.encode(TimingsFormat::Postcard));
    assert_eq!(postcard[0], 1);
    assert!(postcard.len() * 4 < json.len(), "{} {}", postcard.len(), json.len());
    for payload in [json, postcard] {
        assert_eq!(TimingsBatch::decode("pi-4", &payload).unwrap(), batch);
    }
}

#[test]
fn phases_survive_and_what_json_cannot_hold_is_zero() {
    let timings = StepTimings {
        wait_s: f32::NAN,
        load_s: f32::INFINITY,
        quota_cores: Some(f32::NAN),
        cpu_s: 1.5,
        ..StepTimings::default()
    };
    let found = TimedStep::default().with_timings(&timings).timings();
    assert_eq!(found, StepTimings { cpu_s: 1.5, ..StepTimings::default() });
}

#[test]
fn what_no_agent_sends_is_refused() {
    let good = batch(vec![TimedStep { seq: 1, ..step(1.0) }, TimedStep { seq: 2, ..step(2.0) }]);
    let decode = |batch: &TimingsBatch| TimingsBatch::decode("pi-4", &batch.encode(TimingsFormat::Postcard));
    assert!(decode(&good).is_ok());
    let changed = |change: fn(&mut TimingsBatch)| {
        let mut batch = good.clone();
        change(&mut batch);
        decode(&batch)
    };
    assert!(matches!(changed(|batch| batch.steps.clear()), Err(TimingsError::Steps { .. })));
    assert!(matches!(changed(|batch| batch.first = 0), Err(TimingsError::Steps { .. })));
    assert!(matches!(changed(|batch| batch.steps.reverse()), Err(TimingsError::Steps { .. })));
    assert!(matches!(changed(|batch| batch.steps[1].seq = 1), Err(TimingsError::Steps { .. })));
    assert!(matches!(changed(|batch| batch.steps[1].cpu_s = f32::NAN), Err(TimingsError::NotFinite { seq: 2 })));
    assert!(matches!(changed(|batch| batch.agent = "pi-5".into()), Err(TimingsError::Name)));
    assert!(matches!(TimingsBatch::decode("x", b"\x02"), Err(TimingsError::Format)));
    assert!(matches!(TimingsBatch::decode("x", &vec![b'{'; BATCH_BYTES_MAX + 1]), Err(TimingsError::TooLong { .. })));
}

proptest! {
    #[test]
    fn hostile_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..3) {
        let bytes = match kind {
            0 => bytes,
            1 => [&[1], &bytes[..]].concat(),
            _ => [b"{", &bytes[..]].concat(),
        };
        prop_assert!(TimingsBatch::decode("x", &bytes).is_err());
    }

    /// A broker that takes some batches, loses some answers and is away for a while; a receiver that knows steps by number.
    #[test]
    fn every_step_arrives_once_and_in_order_or_is_counted_as_lost(
        steps_max in 1usize..50,
        bytes_max in 500usize..5000,
        format in prop_oneof![Just(TimingsFormat::Json), Just(TimingsFormat::Postcard)],
        events in proptest::collection::vec(0u8..6, 1..300),
    ) {
        let mut buffer = TimingsBuffer::new("pi-4", format, steps_max);
        let (mut arrived, mut lost, mut pushed, mut under_way) = (std::collections::BTreeSet::new(), 0, 0, None);
        let mut receive = |payload: &[u8], arrived: &mut std::collections::BTreeSet<u64>| {
            let batch = TimingsBatch::decode("pi-4", payload).unwrap();
            assert!(payload.len() <= bytes_max);
            lost = lost.max(batch.lost);
            for step in batch.steps {
                if arrived.insert(step.seq) {
                    assert!(arrived.range(step.seq + 1..).next().is_none(), "{} came late", step.seq);
                }
            }
        };
        for event in events.into_iter().chain([4, 3, 4].repeat(60)) {
            match event {
                0..=2 if pushed < 150 => {
                    prop_assert_eq!(buffer.push(step(pushed as f64)), pushed);
                    pushed += 1;
                    prop_assert!(buffer.waiting() <= steps_max);
                }
                3 | 4 if under_way.is_none() => under_way = buffer.next_batch(SESSION, bytes_max),
                3 => if let Some(payload) = under_way.take() {
                    receive(&payload, &mut arrived);
                    buffer.acknowledged();
                }
                4 => if let Some(payload) = under_way.take() {
                    receive(&payload, &mut arrived); // it arrived, and its acknowledgement did not
                    buffer.failed();
                }
                _ => {
                    prop_assert!(under_way.is_none() || buffer.next_batch(SESSION, bytes_max).is_none());
                    under_way = None;
                    buffer.failed();
                }
            }
        }
        while let Some(payload) = { buffer.failed(); buffer.next_batch(SESSION, bytes_max) } {
            receive(&payload, &mut arrived);
            buffer.acknowledged();
        }
        prop_assert_eq!(buffer.waiting(), 0);
        // A step that was dropped while it was under way may have arrived nevertheless.
        prop_assert!(arrived.len() as u64 <= pushed && arrived.len() as u64 + buffer.lost() >= pushed);
        prop_assert!(lost <= buffer.lost());
    }
}
