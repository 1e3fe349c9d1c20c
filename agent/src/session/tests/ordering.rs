//! What operators order: to pause, to come back, to take smaller batches, to begin anew.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use omnilearn_wire::AssignmentId;
use omnilearn_wire::message::{AgentMessage, HubMessage};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::fake::{FakeFactory, Hub, JOB, Peer, Step, offer, soon, train};
use crate::config::{Secrets, Token};
use crate::health::Health;
use crate::session::kernel::KernelStore;
use crate::session::orders::Helm;
use crate::session::{Agent, ComputeFactory};
use crate::trust::Trust;

/// Where a test orders and sees what comes of it.
struct Operator {
    helm: Helm,
    health: watch::Receiver<Health>,
}

impl Operator {
    async fn sees(&mut self, wanted: fn(&Health) -> bool) {
        soon("the agent's health", self.health.wait_for(wanted)).await.unwrap();
    }
}

/// Runs an agent that has the kernel while a test plays hub and operator.
async fn with_operator(hub: &Hub, factory: &Arc<FakeFactory>, play: impl AsyncFnOnce(Operator)) {
    hub.cache_kernel();
    let (config, shutdown) = (hub.config(), CancellationToken::new());
    let store = KernelStore::new(&config.cache);
    let compute: Arc<dyn ComputeFactory> = Arc::clone(factory) as _;
    let agent = Agent::new(config, compute, store, shutdown.clone());
    let operator = Operator { helm: agent.helm.clone(), health: agent.health.subscribe() };
    let play = async {
        play(operator).await;
        shutdown.cancel();
    };
    let (result, ()) = tokio::join!(agent.run(), play);
    result.unwrap();
}

async fn expect_leaving(mut peer: Peer, expected: &str) {
    match peer.next().await {
        AgentMessage::Leaving { reason } => assert_eq!(reason, expected),
        other => panic!("{other:?} instead of a goodbye"),
    }
    let (code, reason) = peer.closed().await;
    assert_eq!((code, reason.as_str()), (1000, expected));
}

fn is_paused(health: &Health) -> bool {
    matches!(health, Health::Paused { .. })
}

#[tokio::test]
async fn paused_agent_leaves_in_the_middle_of_a_step_and_comes_back_with_its_trainer() {
    let (hub, factory) = (Hub::new().await, FakeFactory::new(8));
    factory.on(1, Step::Held);
    with_operator(&hub, &factory, async |mut operator| {
        let mut peer = hub.accept_ready().await;
        peer.send(&train(1)).await;
        factory.begun(1).await;
        operator.helm.pause(true);
        expect_leaving(peer, "paused").await;
        operator.sees(is_paused).await;
        factory.release(); // what it computes is for nobody
        operator.helm.pause(false);
        let mut peer = hub.accept_ready().await;
        peer.send_parameters(0, &[3; 8]).await;
        peer.send(&train(2)).await;
        assert_eq!(peer.push(AssignmentId(2)).await.0, [3; 8]);
        operator.sees(|health| matches!(health, Health::Connected { .. })).await;
        assert_eq!(factory.prepared.load(Ordering::Relaxed), 1);
    })
    .await;
}

#[tokio::test]
async fn agent_that_waits_for_its_hub_pauses_too_and_dials_nobody() {
    let (hub, factory) = (Hub::new().await, FakeFactory::new(8));
    with_operator(&hub, &factory, async |mut operator| {
        drop(hub.accept_tcp().await);
        operator.helm.pause(true);
        operator.sees(is_paused).await;
        operator.helm.limit_batch(NonZeroU32::new(4)); // stays paused through other orders
        assert!(is_paused(&operator.health.borrow()));
        operator.helm.pause(false);
        hub.accept().await;
    })
    .await;
}

#[tokio::test]
async fn largest_batch_is_what_the_operator_allows_from_the_next_connection_on() {
    let (hub, factory) = (Hub::new().await, FakeFactory::new(8));
    with_operator(&hub, &factory, async |operator| {
        let mut peer = hub.accept_ready().await;
        for batch_max in [NonZeroU32::new(16), None] {
            operator.helm.limit_batch(batch_max);
            expect_leaving(peer, "its largest batch has changed").await;
            peer = hub.accept().await;
            peer.send(&HubMessage::JobOffer(offer())).await;
            let AgentMessage::JobReady { job: JOB, ready } = peer.next().await else { panic!("not ready") };
            assert_eq!(ready.batch_max, batch_max.map(NonZeroU32::get));
        }
    })
    .await;
}

#[tokio::test]
async fn agent_that_begins_anew_shows_its_new_token_and_gets_ready_from_the_start() {
    let (hub, factory) = (Hub::new().await, FakeFactory::new(8));
    with_operator(&hub, &factory, async |operator| {
        let peer = hub.accept_ready().await;
        let token = Some(Token::new("another").unwrap());
        operator.helm.start_over(Some(Secrets { token, trust: Trust::FirstUse, broker: None }));
        expect_leaving(peer, "its configuration was read again").await;
        let (mut peer, hello) = hub.accept_hello().await;
        assert_eq!(hello.token.as_deref(), Some("another"));
        peer.welcome(1000).await;
        peer.send(&HubMessage::JobOffer(offer())).await;
        assert!(matches!(peer.next().await, AgentMessage::JobReady { .. }));
        assert_eq!(factory.prepared.load(Ordering::Relaxed), 2);
    })
    .await;
}
