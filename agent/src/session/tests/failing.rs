//! Failures of compute, and a hub that breaks the protocol.

use std::sync::atomic::Ordering;

use omnilearn_wire::message::{AgentMessage, Failure, HubMessage, KernelSignature};
use omnilearn_wire::{AssignmentId, Version};

use super::fake::{FakeFactory, HUB_SECRET, Hub, JOB, KERNEL, Step, digest, key_pair, offer, train};

#[tokio::test]
async fn failed_step_is_reported_with_its_kind_and_the_next_one_runs() {
    let failures = [Failure::Trap, Failure::Limit, Failure::Kernel, Failure::Memory, Failure::Data, Failure::NotFinite];
    let hub = Hub::new().await;
    hub.cache_kernel();
    let factory = FakeFactory::new(8);
    for (assignment, failure) in (1..).zip(failures) {
        factory.on(assignment, Step::Fail(failure));
    }
    let agent = hub.start(&factory);
    let mut peer = hub.accept_ready().await;
    for (assignment, expected) in (1..).zip(failures) {
        peer.send(&train(assignment)).await;
        let AgentMessage::AssignmentFailed { assignment: failed, failure, message } = peer.next().await else {
            panic!("no failure");
        };
        assert_eq!((failed, failure), (AssignmentId(assignment), expected));
        assert!(message.contains("for a test"), "{message}");
    }
    peer.send(&train(100)).await;
    peer.push(AssignmentId(100)).await;
    agent.stop().await;
}

#[tokio::test]
async fn panic_in_a_step_is_a_device_failure_and_the_agent_starts_over() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let factory = FakeFactory::new(8);
    factory.on(1, Step::Panic);
    let agent = hub.start(&factory);
    let mut peer = hub.accept_ready().await;
    peer.send(&train(1)).await;
    let AgentMessage::AssignmentFailed { failure: Failure::Device, message, .. } = peer.next().await else {
        panic!("no device failure");
    };
    assert!(message.contains("for a test"), "{message}");
    assert!(matches!(peer.next().await, AgentMessage::Leaving { .. }));
    let mut peer = hub.accept_ready().await;
    assert_eq!(factory.prepared.load(Ordering::Relaxed), 2, "with a fresh trainer");
    peer.send(&train(2)).await;
    peer.push(AssignmentId(2)).await;
    agent.stop().await;
}

#[tokio::test]
async fn job_that_the_agent_cannot_do_is_declined_and_taken_when_it_can() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let factory = FakeFactory::new(8);
    let agent = hub.start(&factory);
    let mut peer = hub.accept().await;
    for reason in ["no data set", "a panic"] {
        *factory.refuse.lock().unwrap() = Some(reason.to_owned());
        peer.send(&HubMessage::JobOffer(offer())).await;
        let AgentMessage::JobDeclined { job: JOB, reason: given } = peer.next().await else { panic!("not declined") };
        assert!(given.contains(reason), "{given}");
    }
    peer.send(&HubMessage::JobOffer(offer())).await;
    assert!(matches!(peer.next().await, AgentMessage::JobReady { .. }));
    agent.stop().await;
}

#[tokio::test]
async fn kernel_of_another_digest_or_an_absurd_size_is_declined() {
    let hub = Hub::new().await;
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    let mut wrong = offer();
    wrong.kernel_digest = [9; 32];
    wrong.signatures = vec![KernelSignature::from(&key_pair(HUB_SECRET).sign(&[9; 32]))];
    peer.send(&HubMessage::JobOffer(wrong)).await;
    assert_eq!(peer.next().await, AgentMessage::FetchKernel { digest: [9; 32], offset: 0 });
    let total = KERNEL.len() as u64;
    peer.send(&HubMessage::KernelChunk { digest: [9; 32], offset: 0, total, bytes: KERNEL }).await;
    let AgentMessage::JobDeclined { reason, .. } = peer.next().await else { panic!("not declined") };
    assert!(reason.contains("digest"), "{reason}");

    let mut huge = offer();
    huge.kernel_bytes = u64::MAX;
    peer.send(&HubMessage::JobOffer(huge)).await;
    let AgentMessage::JobDeclined { reason, .. } = peer.next().await else { panic!("not declined") };
    assert!(reason.contains(&u64::MAX.to_string()), "{reason}");
    agent.stop().await;
}

#[tokio::test]
async fn work_for_a_job_that_is_not_ready_fails_by_name() {
    let hub = Hub::new().await;
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    peer.send(&train(1)).await;
    let AgentMessage::AssignmentFailed { message, .. } = peer.next().await else { panic!("no failure") };
    assert_eq!(message, "the agent is not ready for job 7");
    agent.stop().await;
}

#[tokio::test]
async fn parameters_with_a_gap_or_of_another_length_close_the_connection_with_the_reason() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let agent = hub.start(&FakeFactory::new(8));
    for (offset, total, bytes) in [(4, 8, [0; 4]), (0, 12, [0; 4]), (0, 4, [0; 4]), (u64::MAX, 8, [0; 4])] {
        let mut peer = hub.accept_ready().await;
        peer.send(&HubMessage::ParameterChunk { job: JOB, version: Version(3), offset, total, bytes: &bytes }).await;
        let (code, reason) = peer.closed().await;
        assert_eq!(code, 1008);
        assert!(reason.starts_with("parameter piece of version 3"), "{reason}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn kernel_pieces_out_of_order_close_the_connection_with_the_reason() {
    let hub = Hub::new().await;
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    peer.send(&HubMessage::JobOffer(offer())).await;
    assert_eq!(peer.next().await, AgentMessage::FetchKernel { digest: digest(KERNEL), offset: 0 });
    peer.send_kernel(3, 5).await;
    let (code, reason) = peer.closed().await;
    assert_eq!(code, 1008);
    assert!(reason.starts_with("kernel piece at 3"), "{reason}");
    agent.stop().await;
}
