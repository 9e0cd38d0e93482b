import numpy as np


def accuracy(prediction):
    guess = np.argmax(prediction.predictions, axis=1)
    return {"accuracy": float((guess == prediction.label_ids).mean())}


def macro_f1(prediction):
    guess, truth = np.argmax(prediction.predictions, axis=1), prediction.label_ids
    scores = []
    for label in np.unique(truth):
        hit = float(((guess == label) & (truth == label)).sum())
        scores.append(2 * hit / max(1.0, float((guess == label).sum() + (truth == label).sum())))
    return {"macro_f1": float(np.mean(scores))}


METRICS = {"accuracy": accuracy, "macro_f1": macro_f1}
