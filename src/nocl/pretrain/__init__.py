"""Base-session training: the one place where epochs are allowed.

A *recipe* is the list of settings that determine the result. An *objective* holds projection and heads and computes the
loss of a batch. The *training* loop is independent of both; it can be resumed after every epoch, and it caches finished
networks under a hash of their settings. Nothing here evaluates a network or uses a novel class.
"""

from nocl.pretrain.heads import heads_on_features, trains_on_features
from nocl.pretrain.objectives import OBJECTIVES, Contrastive, CrossEntropy, Objective, Strategy
from nocl.pretrain.recipe import Recipe
from nocl.pretrain.training import Trained, WrongBaseError, load_given, load_weights, train_base

__all__ = [
    "OBJECTIVES",
    "Contrastive",
    "CrossEntropy",
    "Objective",
    "Recipe",
    "Strategy",
    "Trained",
    "WrongBaseError",
    "heads_on_features",
    "load_given",
    "load_weights",
    "train_base",
    "trains_on_features",
]
