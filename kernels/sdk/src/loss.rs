//! Losses, each with the metric that goes with it. A function here takes outputs and targets, and returns the loss, the mean
//! over the batch, and the metric, a sum over the batch; both `[1]`.

use crate::Tensor;

/// Logits `[batch, classes]` against labels `[batch]`: the cross-entropy, and how many labels have the largest logit.
pub fn classification(logits: &Tensor, labels: &Tensor) -> (Tensor, Tensor) {
    let loss = logits.cross_entropy(labels);
    let classes = logits.argmax(-1).reshape(&labels.shape()); // [batch, 1] -> [batch]
    (loss, classes.equal(labels).sum(&[]))
}

/// Logits `[batch, tokens, vocabulary]` against the tokens that follow, `[batch, tokens]`: the mean cross-entropy of a token,
/// and each sample's share of tokens whose logit is the largest, so that a sample counts at most 1 whatever its length.
pub fn next_token(logits: &Tensor, next: &Tensor) -> (Tensor, Tensor) {
    let (shape, next_shape) = (logits.shape(), next.shape());
    let rows = next_shape.iter().product();
    let (loss, correct) = classification(&logits.reshape(&[rows, shape[2]]), &next.reshape(&[rows]));
    (loss, correct.mul_scalar(1.0 / next_shape[1] as f32))
}

/// Predictions against targets of the same shape, `[batch, ..]`: the mean of `(prediction - target)^2` over all elements, and
/// the sum over the samples of such a mean over a sample's own elements.
pub fn squared_error(predictions: &Tensor, targets: &Tensor) -> (Tensor, Tensor) {
    let difference = predictions.sub(targets);
    let loss = difference.mul(&difference).mean(&[]);
    let sum = loss.detach().mul_scalar(targets.shape()[0] as f32);
    (loss, sum)
}
