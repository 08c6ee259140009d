# The facade: the names that most programs need; loaded on first use.
from .costs import CloudPrices as CloudPrices
from .costs import FeatureCosts as FeatureCosts
from .errors import GatewiseError as GatewiseError
from .errors import GroupsWarning as GroupsWarning
from .errors import InputError as InputError
from .errors import RecallWarning as RecallWarning
from .facade.bundle import (
    Bundle as Bundle,
)
from .facade.bundle import (
    BundleError as BundleError,
)
from .facade.cloud import Worker as Worker
from .facade.edge import (
    Answer as Answer,
)
from .facade.edge import (
    Audit as Audit,
)
from .facade.edge import (
    Device as Device,
)
from .facade.edge import (
    InProcessLink as InProcessLink,
)
from .facade.edge import (
    MqttLink as MqttLink,
)
from .facade.edge import (
    SensorError as SensorError,
)
from .facade.edge import (
    Sensors as Sensors,
)
from .facade.export import (
    pack as pack,
)
from .facade.export import (
    to_c as to_c,
)
from .facade.export import (
    to_onnx as to_onnx,
)
from .facade.export import (
    verify as verify,
)
from .facade.sim import Scenario as Scenario
from .facade.sim import simulate as simulate
from .facade.training import (
    AdaptGBRT as AdaptGBRT,
)
from .facade.training import (
    AdaptLin as AdaptLin,
)
from .facade.training import (
    AdaptLstsq as AdaptLstsq,
)
from .facade.training import (
    BlockFeatures as BlockFeatures,
)
from .facade.training import (
    BudgetForest as BudgetForest,
)
from .facade.training import (
    BudgetPrune as BudgetPrune,
)
from .facade.training import (
    CEGBClassifier as CEGBClassifier,
)
from .facade.training import (
    CEGBRanker as CEGBRanker,
)
from .facade.training import (
    CEGBRegressor as CEGBRegressor,
)
from .facade.training import (
    ConfidenceCascade as ConfidenceCascade,
)
from .facade.training import (
    FrontierDisplay as FrontierDisplay,
)
from .facade.training import (
    GreedyMiser as GreedyMiser,
)
from .facade.training import (
    L1Cascade as L1Cascade,
)
from .facade.training import (
    OnnxModel as OnnxModel,
)
from .facade.training import (
    PairCascade as PairCascade,
)
from .facade.training import (
    StagedCascade as StagedCascade,
)
from .facade.training import (
    TableEncoder as TableEncoder,
)

__version__: str
