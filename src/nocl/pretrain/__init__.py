"""Base-session training: the one place where epochs are allowed.

A *recipe* says everything that decides the result; an *objective* owns projection and heads and turns a batch into a
loss; the *training* loop knows neither, is resumable after every epoch and keeps finished networks by content. Nothing
here evaluates or ever sees a novel class.
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
